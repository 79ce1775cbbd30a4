//! Linker arguments of a Node add-on.

fn main() {
    napi_build::setup();
}
