//! The native half of the Python package `nolag`; the classes that users see are Python and stand on this.
//!
//! - `core`: one client; `dispatch`: messages to its handlers; `watcher`: what an event loop watches; `queue`: the hop between them and the I/O thread of `runtime`
//! - `reach`: the transport and the tokens; `value`: payloads; `events`, `errors` and `settings`: everything else that crosses
//! - `meta` and `receipt`: the two classes that are made once per message, and so are native

mod core;
mod dispatch;
mod errors;
mod events;
mod meta;
mod queue;
mod reach;
mod receipt;
mod runtime;
mod settings;
mod value;
mod watcher;

use pyo3::prelude::*;

/// The native half of `nolag`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::core::Core;
    #[pymodule_export]
    use crate::core::{check_name, check_payload};
    #[pymodule_export]
    use crate::meta::MessageMeta;
    #[pymodule_export]
    use crate::reach::TokenAnswer;
    #[pymodule_export]
    use crate::receipt::Receipt;
    #[pymodule_export]
    use crate::runtime::forked;
    #[pymodule_export]
    use crate::value::ExtType;
    #[pymodule_export]
    use crate::watcher::Watcher;
}
