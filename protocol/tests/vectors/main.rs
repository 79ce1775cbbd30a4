//! Every case of `vectors/`: frames as bytes, topics and filters (wire protocol 31).
//!
//! Another encoder wrote the bytes, and another hand the decisions.

mod filters;
mod frames;
mod refused;
mod tagged;
mod topics;

use serde_json::Value;

/// The cases of one file.
fn cases(json: &str) -> Vec<Value> {
    let cases: Vec<Value> = serde_json::from_str(json).expect("the vectors are an array");
    assert!(!cases.is_empty());
    cases
}

/// The cases of one kind, with what names them in a failed assertion.
fn of_kind<'c>(cases: &'c [Value], kind: &str) -> Vec<(&'c str, &'c Value)> {
    let found: Vec<_> = cases
        .iter()
        .filter(|case| case["kind"] == kind)
        .map(|case| (case["id"].as_str().expect("a case has an id"), case))
        .collect();
    assert!(!found.is_empty(), "no case of kind {kind}");
    found
}

/// Fails when a file has a kind of case that nobody here decides.
fn assert_kinds(cases: &[Value], known: &[&str]) {
    for case in cases {
        let kind = case["kind"].as_str().expect("a case has a kind");
        assert!(known.contains(&kind), "nothing decides the cases of kind {kind}");
    }
}
