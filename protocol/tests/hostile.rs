//! Input that is meant to hurt: nesting, repeated keys, lengths that are not there.
//!
//! Everything runs on a small stack, so that recursion on the input's depth would be noticed.

use std::time::{Duration, Instant};

use nolag_protocol::frame::{ClientFrame, Fault, ServerFrame};
use nolag_protocol::msgpack::{self, Error, MAX_DEPTH};
use nolag_protocol::{filter, payload};

/// A quarter of what a Python thread with a small stack has (FC-19).
const STACK_BYTES: usize = 64 * 1024;

fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(test).expect("a thread");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// So many containers of one entry inside one another, nil in the innermost.
fn nest(opening: &[u8], levels: usize) -> Vec<u8> {
    [&opening.repeat(levels)[..], msgpack::NIL].concat()
}

/// `{"type": "publish", "topic": "t", "data": …}`
fn publish(data: &[u8]) -> Vec<u8> {
    [b"\x83\xa4type\xa7publish\xa5topic\xa1t\xa4data", data].concat()
}

const ARRAY: &[u8] = &[0x91];
const MAP: &[u8] = &[0x81, 0xa0];
/// A map whose only key is the nested value.
const KEY: &[u8] = &[0x81];

fn fault(bytes: &[u8]) -> Fault {
    ClientFrame::decode(bytes).expect_err("malformed").fault
}

/// FC-19, C-016: frames that are nothing but nesting.
#[test]
fn deep_frames_are_refused() {
    on_a_small_stack(|| {
        for levels in [MAX_DEPTH + 2, 2_048, 100_000, 1_000_000] {
            for opening in [ARRAY, MAP, KEY] {
                let bytes = opening.repeat(levels);
                assert_eq!(fault(&bytes), Fault::Syntax(Error::TooDeep), "{levels} × {opening:02x?}");
                assert!(ServerFrame::decode(&bytes).is_err());
                assert_eq!(msgpack::single(&bytes), Err(Error::TooDeep));
                assert!(filter::subscription_keys(Some(&bytes)).is_err());
                assert!(filter::publish_key(Some(&bytes), Some(&bytes)).is_err());
            }
        }
    });
}

/// What relays a value goes through it flat, should it ever be that deep.
#[test]
fn deep_values_are_relayed_without_a_stack() {
    on_a_small_stack(|| {
        for opening in [ARRAY, MAP] {
            let value = nest(opening, 100_000);
            assert_eq!(payload::with_valid_text(&value).map(|copy| copy == value), Ok(true));
            assert_eq!(payload::as_kraken_relays(&value).map(|copy| copy == Some(value)), Ok(true));
        }
    });
}

/// FC-19, C-016: 128 levels of `data` pass, one more is refused.
#[test]
fn deep_data_is_refused_at_the_limit() {
    on_a_small_stack(|| {
        for opening in [ARRAY, MAP] {
            for levels in [32, MAX_DEPTH] {
                let data = nest(opening, levels);
                let bytes = publish(&data);
                let Ok(ClientFrame::Publish(decoded)) = ClientFrame::decode(&bytes) else {
                    panic!("{levels} levels pass")
                };
                assert_eq!(decoded.data.bytes, data);
            }
            for levels in [MAX_DEPTH + 1, 100_000] {
                assert_eq!(fault(&publish(&nest(opening, levels))), Fault::Syntax(Error::TooDeep));
            }
        }
    });
}

/// FC-19: the same limit for JSON text, on the stack that a thread has at least.
#[cfg(feature = "json")]
#[test]
fn deep_json_is_refused_at_the_limit() {
    use nolag_protocol::json;
    let nest = |levels: usize| {
        let nested = format!("{}null{}", "[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"type": "publish", "topic": "t", "data": {nested}}}"#)
    };
    let thread = std::thread::Builder::new().stack_size(256 * 1024).spawn(move || {
        let bytes = json::to_msgpack(&nest(MAX_DEPTH)).expect("JSON").expect("not empty");
        assert!(ClientFrame::decode(&bytes).is_ok());
        for levels in [MAX_DEPTH + 1, 100_000] {
            assert_eq!(json::to_msgpack(&nest(levels)), Err(Fault::Syntax(Error::TooDeep)));
        }
        for brackets in ["[", "{", "[{", "{\"k\":"] {
            assert_eq!(json::to_msgpack(&brackets.repeat(200_000)), Err(Fault::Syntax(Error::TooDeep)));
        }
    });
    thread.expect("a thread").join().expect("no overflow");
}

/// 4.2: of a repeated key the last value counts, with all that is known of it.
#[test]
fn the_last_of_repeated_keys_counts() {
    // type, topic, and four times data: an extension, broken text, 1, "a"
    let bytes =
        b"\x86\xa4type\xa7publish\xa5topic\xa1t\xa4data\xd4\x07\x01\xa4data\xa1\xff\xa4data\x01\xa4data\xa1a";
    let Ok(ClientFrame::Publish(decoded)) = ClientFrame::decode(bytes) else { panic!("a publish") };
    assert_eq!(decoded.data.bytes, b"\xa1a");
    assert_eq!(decoded.data.contents, msgpack::Contents::default());
    // An extension for a topic that a text then takes the place of, and a type likewise.
    let bytes = b"\x84\xa4type\x01\xa5topic\xd4\x07\x01\xa4type\xa9subscribe\xa5topic\xa1t";
    assert!(matches!(ClientFrame::decode(bytes), Ok(ClientFrame::Subscribe(_))));
    // Nil last: the field is absent.
    let bytes = b"\x83\xa4type\xa9subscribe\xa5topic\xa1t\xa5topic\xc0";
    assert_eq!(fault(bytes), Fault::Missing { frame: "subscribe", field: "topic" });
}

/// Lengths and counts up to 2^32−1 with next to nothing behind them cost neither time nor memory.
#[test]
fn absurd_lengths_are_truncations() {
    on_a_small_stack(|| {
        let start = Instant::now();
        let widths: [(&[u8], usize); 13] = [
            (&[0xd9], 1),
            (&[0xda], 2),
            (&[0xdb], 4),
            (&[0xc4], 1),
            (&[0xc5], 2),
            (&[0xc6], 4),
            (&[0xc7], 1),
            (&[0xc8], 2),
            (&[0xc9], 4),
            (&[0xdc], 2),
            (&[0xdd], 4),
            (&[0xde], 2),
            (&[0xdf], 4),
        ];
        for (marker, width) in widths {
            let header = [marker, &[0xff].repeat(width)[..]].concat();
            let with_rest = [&header[..], b"\x01\x01\x01\x01"].concat();
            for value in [&header, &with_rest] {
                assert_eq!(msgpack::single(value), Err(Error::Truncated), "{value:02x?}");
                for frame in [
                    value.clone(),
                    publish(value),
                    [b"\x82", &value[..], b"\x01"].concat(),
                    [b"\x82\xa4type\xa8batchAck\xa6msgIds", &value[..]].concat(),
                    [b"\x82\xa4type\xa4auth\xa8features", &value[..]].concat(),
                ] {
                    assert_eq!(fault(&frame), Fault::Syntax(Error::Truncated), "{frame:02x?}");
                    assert!(ServerFrame::decode(&frame).is_err());
                }
                assert!(filter::subscription_keys(Some(value)).is_err());
                assert!(filter::publish_key(None, Some(value)).is_err());
                assert!(filter::publish_key(Some(value), None).is_err());
            }
        }
        assert!(start.elapsed() < Duration::from_secs(30), "took {:?}", start.elapsed());
    });
}

/// As many pairs, items and ids as there are bytes for: none of them costs more than the others.
#[test]
fn a_message_full_of_crumbs() {
    let crumbs = 200_000_u32;
    let map = [&[0xdf], &crumbs.to_be_bytes()[..], &[0xc0, 0xc0].repeat(crumbs as usize)].concat();
    let array = [&[0xdd], &crumbs.to_be_bytes()[..], &[0xa0].repeat(crumbs as usize)].concat();
    assert_eq!(fault(&map), Fault::NoType);
    assert!(ClientFrame::decode(&publish(&map)).is_ok());
    let ids = [b"\x82\xa4type\xa8batchAck\xa6msgIds", &array[..]].concat();
    assert!(matches!(fault(&ids), Fault::WrongType { frame: "batchAck", field: "msgIds", .. }));
    assert_eq!(filter::subscription_keys(Some(&array)), Err(filter::FilterError::TooMany));
}
