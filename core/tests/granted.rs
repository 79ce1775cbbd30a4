//! What a broker grants beyond the protocol (features 1), on a stepped clock: `batch`, `rooms`, `reauth`, `trace`.

use nolag_core::session::Dispatched;

#[path = "kit/mod.rs"]
mod kit;
use kit::*;

/// F-12: frames that come in one message are handled in order, as if each had come alone; a bad one ends the message, and those before
/// it stand.
#[test]
fn frames_in_one_message() {
    let mut rig = Rig::granted(quiet(), &["batch"]);
    let subscribe = rig.subscribe("t");
    let frames = [
        subscribed("t").to_vec(),
        message("t", Some("m-1"), &number(1)).to_vec(),
        message("t", Some("m-2"), &number(2)).to_vec(),
    ];
    rig.server_batch(&frames);
    assert!(rig.is_done(subscribe));
    let messages = rig.messages();
    assert_eq!(messages.iter().map(|message| value(&message.data)).collect::<Vec<_>>(), [1, 2]);
    let ids: Vec<_> = messages.iter().map(|message| message.meta().msg_id).collect();
    assert_eq!(ids, [Some("m-1"), Some("m-2")], "each keeps what is its own");
    rig.session.dispatched(rig.now, Dispatched::UpTo(messages[1].delivery));
    rig.drain();
    assert_eq!(rig.frames(), ["subscribe t", "batchAck m-1,m-2"]);

    let before = rig.session.stats();
    let good = |id| message("t", Some(id), &number(1)).to_vec();
    rig.server_batch(&[good("m-3"), good("m-4"), vec![0x81, 0xa4], good("m-5")]);
    assert_eq!(rig.messages().len(), 2, "those before it stand, those behind it are not read");
    let after = rig.session.stats();
    assert_eq!((after.frames_in - before.frames_in, after.decode_errors - before.decode_errors), (3, 1));
}

/// Features 5: several frames in a message are taken, and sent, only where that was granted, on this connection.
#[test]
fn without_the_grant_a_message_is_one_frame() {
    let mut rig = Rig::connected(quiet());
    rig.subscribed("t");
    assert!(!rig.session.may_batch());
    let good = |id| message("t", Some(id), &number(1)).to_vec();
    rig.server_batch(&[good("m-1"), good("m-2")]);
    assert_eq!(rig.messages().len(), 1);
    assert_eq!(rig.session.stats().decode_errors, 1);

    let mut rig = Rig::granted(quiet(), &["batch", "time travel"]);
    assert!(rig.session.may_batch());
    rig.cut();
    rig.wait_for_attempt();
    assert!(!rig.session.may_batch());
    rig.accept();
    assert!(!rig.session.may_batch());
}
