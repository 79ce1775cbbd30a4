//! The driver over a transport in memory, on a paused clock: nothing here waits for anything.

#![cfg(feature = "native")]

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use nolag_core::Client;
use nolag_core::driver::memory::Memory;
use nolag_core::event::{Event, State};
use nolag_core::options::{Qos, ReceiveOverflow};
use nolag_protocol::frame::{ClientFrame, PresenceList};
use tokio_tungstenite::tungstenite::Message;

#[path = "kit/mod.rs"]
mod kit;
#[path = "kit/peer.rs"]
mod peer;
use kit::{accepted, message, number, published, subscribed, unsubscribed};
use peer::Peer;

/// A cut, a silent peer and a close, end to end: publishes arrive in order, and the last frame before a close is the client's.
#[tokio::test(start_paused = true)]
async fn over_a_cut_and_a_silence() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let connecting = tokio::spawn({
        let client = client.clone();
        async move { client.connect().await }
    });
    let mut peer = Peer::accept(&mut queue).await;
    let publishes: Vec<_> =
        (0..200).map(|n| tokio::spawn(client.publish_bytes("t", number(n)).into_future())).collect();
    assert!(peer.serve(50).await.into_iter().eq(0..50));
    connecting.await.unwrap().unwrap();
    drop(peer); // cut
    let mut peer = Peer::accept(&mut queue).await;
    let seen = peer.serve(150).await;
    assert!(seen.is_sorted() && seen.last() == Some(&199), "{seen:?}");
    for publish in publishes {
        publish.await.unwrap().unwrap();
    }
    // A peer that answers nothing any more is noticed, and left.
    let mut events = client.events();
    let start = tokio::time::Instant::now();
    loop {
        if let Event::Disconnected { reason, .. } = events.recv().await.unwrap() {
            assert_eq!(reason, "the broker does not answer");
            break;
        }
    }
    assert!(start.elapsed() <= Duration::from_secs(41), "{:?}", start.elapsed());
    let mut next = Peer::accept(&mut queue).await;
    drop(peer);
    let closing = tokio::spawn({
        let client = client.clone();
        async move {
            client.publish_bytes("t", number(7)).await.unwrap();
            client.close().await
        }
    });
    assert_eq!(next.serve(1).await, [7]);
    assert_eq!(next.read().await, None, "a close");
    closing.await.unwrap().unwrap();
    assert_eq!(client.state(), State::Closed);
}

/// A message is acknowledged when it has been taken from the stream, not before; several at once in one frame.
#[tokio::test(start_paused = true)]
async fn acknowledged_when_taken() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let subscribing = tokio::spawn({
        let client = client.clone();
        async move {
            client.connect().await.unwrap();
            client.subscribe("t").await.unwrap()
        }
    });
    let mut peer = Peer::accept(&mut queue).await;
    peer.welcome().await;
    let mut messages = subscribing.await.unwrap();
    for id in ["m-1", "m-2", "m-3"] {
        peer.send(message("t", Some(id), &number(1))).await;
    }
    let silence = tokio::time::timeout(Duration::from_secs(5), peer.read()).await;
    assert!(silence.is_err(), "nothing was taken yet");
    for _ in 0..3 {
        messages.next().await.unwrap().unwrap();
    }
    assert_eq!(kit::describe(&peer.read().await.unwrap()), "batchAck m-1,m-2,m-3");
}

/// API-077, FC-22: what is dropped for a slow reader is counted exactly, and told once when it has caught up. The newest, or the
/// oldest, are kept, in order.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_that_drops() {
    for (policy, kept) in [(ReceiveOverflow::DropOldest, 40..50), (ReceiveOverflow::DropNewest, 0..10)] {
        let (transport, mut queue) = Memory::new();
        let client = Client::builder("t").transport(transport).build().unwrap();
        let subscribing = tokio::spawn({
            let client = client.clone();
            async move {
                client.connect().await.unwrap();
                client.subscribe("t").buffer(10).overflow(policy).await.unwrap()
            }
        });
        let mut peer = Peer::accept(&mut queue).await;
        peer.welcome().await;
        let mut messages = subscribing.await.unwrap();
        let mut events = client.events();
        for n in 0..50 {
            peer.send(message("t", Some(&format!("m-{n}")), &number(n))).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut seen = Vec::new();
        while let Ok(next) = tokio::time::timeout(Duration::from_secs(1), messages.next()).await {
            seen.push(next.unwrap().unwrap().decode::<u64>().unwrap());
        }
        assert_eq!(seen, kept.collect::<Vec<_>>(), "{policy:?}");
        let told = std::iter::from_fn(|| events.try_recv().ok());
        let told: Vec<_> = told.filter(|event| matches!(event, Event::Overflow { .. })).collect();
        assert_eq!(told, [Event::Overflow { topic: "t".into(), dropped: 40 }], "{policy:?}");
    }
}

/// Features 5: what is ready in one turn goes out in one message where the broker takes that, and comes back so; heartbeats stay
/// alone.
#[tokio::test(start_paused = true)]
async fn a_turn_in_one_message() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let connecting = tokio::spawn({
        let client = client.clone();
        async move { client.connect().await }
    });
    let mut peer = Peer::accept(&mut queue).await;
    peer.read().await.unwrap();
    peer.send(nolag_protocol::frame::AuthReply { features: vec!["batch"], ..accepted() }).await;
    connecting.await.unwrap().unwrap();
    let publishing = tokio::spawn({
        let client = client.clone();
        async move {
            let publishes = (0..50).map(|n| client.publish_bytes("t", number(n)).into_future());
            futures_util::future::join_all(publishes).await
        }
    });
    let message = peer.read().await.unwrap();
    let (mut rest, mut answers, mut seen) = (&message[..], Vec::new(), Vec::new());
    while !rest.is_empty() {
        let (frame, behind) = ClientFrame::decode_first(rest);
        let Ok(ClientFrame::Publish(frame)) = frame else { panic!("{frame:?}") };
        seen.push(kit::value(frame.data.bytes));
        published(frame.topic, frame.msg_ref.0).encode(&mut answers);
        rest = behind;
    }
    assert!(seen.into_iter().eq(0..50), "all in one message");
    peer.0.send(Message::binary(answers)).await.unwrap();
    assert!(publishing.await.unwrap().iter().all(Result::is_ok));
    let Some(Ok(Message::Binary(beat))) = peer.0.next().await else { panic!() };
    assert!(beat.is_empty());
    let stats = client.stats();
    assert_eq!((stats.frames_out, stats.frames_in), (52, 51), "frames are counted, not messages");
}

/// What comes before a subscribe is answered is not for its reader, who cannot read yet: however much it is, the answer is read.
#[tokio::test(start_paused = true)]
async fn an_answer_behind_many_messages() {
    let (transport, mut queue) = Memory::new();
    let builder = Client::builder("t").transport(transport);
    let client = builder.options(|options| options.receive_buffer = 4).build().unwrap();
    let subscribe = || {
        let client = client.clone();
        tokio::spawn(async move {
            client.connect().await.unwrap();
            client.subscribe("t").filters(["a"]).await.unwrap()
        })
    };
    let first = subscribe();
    let mut peer = Peer::accept(&mut queue).await;
    peer.welcome().await;
    drop(first.await.unwrap());
    let second = subscribe();
    assert_eq!(kit::describe(&peer.read().await.unwrap()), "unsubscribe t");
    for n in 0..20 {
        peer.send(message("t", Some(&format!("m-{n}")), &number(n))).await;
    }
    peer.send(unsubscribed("t")).await;
    while !matches!(ClientFrame::decode(&peer.read().await.unwrap()), Ok(ClientFrame::Subscribe(_))) {}
    peer.send(subscribed("t")).await;
    peer.send(message("t", Some("m-20"), &number(20))).await;
    let mut messages = second.await.unwrap();
    assert_eq!(messages.next().await.unwrap().unwrap().decode::<u64>().unwrap(), 20);
}

/// Client-api 12.1: who does not read cannot hear, and does not take the broker for dead.
#[tokio::test(start_paused = true)]
async fn a_pause_is_no_loss() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let subscribing = tokio::spawn({
        let client = client.clone();
        async move {
            client.connect().await.unwrap();
            client.subscribe("t").buffer(2).await.unwrap()
        }
    });
    let mut peer = Peer::accept(&mut queue).await;
    peer.welcome().await;
    let mut messages = subscribing.await.unwrap();
    for n in 0..10 {
        peer.send(message("t", Some(&format!("m-{n}")), &number(n))).await;
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(client.state(), State::Connected);
    for n in 0..10 {
        assert_eq!(messages.next().await.unwrap().unwrap().decode::<u64>().unwrap(), n);
    }
    // From then on a silence is one again.
    assert!(tokio::time::timeout(Duration::from_secs(45), messages.next()).await.is_err());
    assert_ne!(client.state(), State::Connected);
}

/// FC-20, client-api 12.1: a loop that publishes for each message gets its answers, though they lie behind more messages than it has
/// room for.
#[tokio::test(start_paused = true)]
async fn publishing_in_the_loop_that_reads() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let answering = tokio::spawn({
        let client = client.clone();
        async move {
            client.connect().await.unwrap();
            let mut messages = client.subscribe("t").buffer(2).await.unwrap();
            for n in 0..100 {
                let message = messages.next().await.unwrap().unwrap();
                assert_eq!(message.decode::<u64>().unwrap(), n);
                client.publish("answers", &n).await.unwrap();
            }
        }
    });
    let mut peer = Peer::accept(&mut queue).await;
    peer.welcome().await;
    for n in 0..100 {
        peer.send(message("t", Some(&format!("m-{n}")), &number(n))).await;
    }
    let mut answered = 0;
    while answered < 100 {
        if let ClientFrame::Publish(frame) = ClientFrame::decode(&peer.read().await.unwrap()).unwrap() {
            assert_eq!(kit::value(frame.data.bytes), answered);
            peer.send(published(frame.topic, frame.msg_ref.0)).await;
            answered += 1;
        }
    }
    answering.await.unwrap();
}

/// Client-api 12.1, 12.2, API-006: a peer that takes nothing holds publishes back in their queue, and a disconnect not at all.
#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let connecting = tokio::spawn({
        let client = client.clone();
        async move { client.connect().await }
    });
    let mut peer = Peer::accept(&mut queue).await;
    peer.read().await.unwrap();
    peer.send(accepted()).await;
    connecting.await.unwrap().unwrap();
    let payload = kit::pack(&rmpv::Value::Binary(vec![7; 100_000]));
    let publish_50 = || -> Vec<_> {
        let publish = || client.publish_bytes("t", payload.clone()).qos(Qos::AtMostOnce).into_future();
        (0..50).map(|_| tokio::spawn(publish())).collect()
    };
    let publishes = publish_50();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = client.stats().outbox.queued;
    assert!((35..50).contains(&held), "about a megabyte is on its way: {held} are not");
    // It reads again.
    for _ in 0..50 {
        peer.read().await.unwrap();
    }
    for publish in publishes {
        publish.await.unwrap().unwrap();
    }
    let publishes = publish_50();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let held = client.stats().outbox.queued;
    tokio::time::timeout(Duration::from_secs(1), client.disconnect()).await.unwrap().unwrap();
    assert_eq!(client.state(), State::Closed);
    let mut failed = 0;
    for publish in publishes {
        if let Err(error) = publish.await.unwrap() {
            assert_eq!(error.code(), "closed");
            failed += 1;
        }
    }
    assert!(failed == held && failed > 35, "{failed} of {held}");
}

/// API-080: ten thousand calls that are given up at any moment leave nothing behind: no call, no publish, no subscription.
#[tokio::test(start_paused = true)]
async fn calls_given_up_at_random() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    // A broker that answers everything.
    tokio::spawn(async move {
        let mut peer = Peer::accept(&mut queue).await;
        while let Some(bytes) = peer.read().await {
            match ClientFrame::decode(&bytes).unwrap() {
                ClientFrame::Auth(_) => peer.send(accepted()).await,
                ClientFrame::Subscribe(frame) => peer.send(subscribed(frame.topic)).await,
                ClientFrame::Unsubscribe(frame) => peer.send(unsubscribed(frame.topic)).await,
                ClientFrame::Publish(frame) => peer.send(published(frame.topic, frame.msg_ref.0)).await,
                ClientFrame::GetPresence(frame) => {
                    let data = nolag_protocol::frame::Data::new(&[0x90]);
                    let (room_id, msg_ref) = (frame.room_id, frame.msg_ref.0);
                    peer.send(PresenceList { app: None, room_id, data, truncated: None, msg_ref }).await;
                }
                other => panic!("{other:?}"),
            }
        }
    });
    client.connect().await.unwrap();
    let room = client.app("a").unwrap().room("r").unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    for n in 0..10_000 {
        let topic = format!("t/{}", rng.u8(0..5));
        let call: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match rng.u8(0..4) {
            0 => {
                let publish = client.publish(&topic, &n);
                Box::pin(async move { drop(publish.await) })
            }
            1 => {
                let subscribe = client.subscribe(&topic);
                Box::pin(async move { drop(subscribe.await) })
            }
            2 => Box::pin(async { drop(room.fetch_presence().await) }),
            _ => Box::pin(async { drop(client.flush(None).await) }),
        };
        let patience = async {
            for _ in 0..rng.u8(0..6) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = call => {}
            () = patience => {}
        }
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let stats = client.stats();
    assert_eq!((stats.open_calls, stats.pending_requests, stats.topics), (0, 0, 0), "{stats:?}");
    assert_eq!((stats.outbox.queued, stats.outbox.in_flight), (0, 0));
    assert!(stats.published > 100, "some were sent: {stats:?}");
}

/// FC-08, API-079: a topic's readers do not pile up: each message is read once, however often the topic was left and taken up again,
/// and nobody is left when the last has gone.
#[tokio::test(start_paused = true)]
async fn readers_do_not_pile_up() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let asking = tokio::spawn({
        let client = client.clone();
        async move {
            client.connect().await.unwrap();
            for _ in 0..20 {
                let mut messages = client.subscribe("t").await.unwrap();
                assert!(messages.next().await.unwrap().is_ok());
            }
            client.subscribe("t").await.unwrap()
        }
    });
    let mut peer = Peer::accept(&mut queue).await;
    let (mut round, mut unsubscribed_from) = (0, 0);
    while round <= 20 {
        match ClientFrame::decode(&peer.read().await.unwrap()).unwrap() {
            ClientFrame::Auth(_) => peer.send(accepted()).await,
            ClientFrame::Subscribe(frame) => {
                peer.send(subscribed(frame.topic)).await;
                peer.send(message("t", None, &number(round))).await;
                round += 1;
            }
            ClientFrame::Unsubscribe(frame) => {
                peer.send(unsubscribed(frame.topic)).await;
                unsubscribed_from += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(unsubscribed_from, 20);
    let mut messages = asking.await.unwrap();
    assert_eq!(messages.next().await.unwrap().unwrap().decode::<u64>().unwrap(), 20);
    drop(peer); // cut
    let mut peer = Peer::accept(&mut queue).await;
    peer.welcome().await;
    peer.send(message("t", None, &number(21))).await;
    assert_eq!(messages.next().await.unwrap().unwrap().decode::<u64>().unwrap(), 21);
    let more = tokio::time::timeout(Duration::from_secs(1), messages.next()).await;
    assert!(more.is_err(), "once each");
    drop(messages);
    assert_eq!(kit::describe(&peer.read().await.unwrap()), "unsubscribe t");
}

/// API-041: a value is encoded by the call; what becomes of it afterwards changes nothing.
#[tokio::test(start_paused = true)]
async fn a_value_that_changes_later() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let mut value = 1;
    let publish = client.publish("t", &value).into_future();
    value += 1;
    let connecting = tokio::spawn({
        let client = client.clone();
        async move { client.connect().await.map(|()| value) }
    });
    let mut peer = Peer::accept(&mut queue).await;
    peer.read().await.unwrap();
    peer.send(accepted()).await;
    connecting.await.unwrap().unwrap();
    let publish = tokio::spawn(publish);
    assert_eq!(peer.serve(1).await, [1]);
    publish.await.unwrap().unwrap();
}

/// API-053: fifty thousand messages of two topics, many to a WebSocket message, reach their readers in order.
#[tokio::test(start_paused = true)]
async fn many_messages_in_order() {
    let (transport, mut queue) = Memory::new();
    let client = Client::builder("t").transport(transport).build().unwrap();
    let reading = tokio::spawn({
        let client = client.clone();
        async move {
            client.connect().await.unwrap();
            let (even, odd) =
                (client.subscribe("even").await.unwrap(), client.subscribe("odd").await.unwrap());
            let read = |first: u64, messages: nolag_core::client::Subscription| async move {
                let numbers = messages.take(25_000).map(|message| message.unwrap().decode::<u64>().unwrap());
                assert!(numbers.collect::<Vec<_>>().await.into_iter().eq((first..50_000).step_by(2)));
            };
            tokio::join!(read(0, even), read(1, odd));
        }
    });
    let mut peer = Peer::accept(&mut queue).await;
    for _ in 0..3 {
        match ClientFrame::decode(&peer.read().await.unwrap()).unwrap() {
            ClientFrame::Subscribe(frame) => peer.send(subscribed(frame.topic)).await,
            _ => peer.send(nolag_protocol::frame::AuthReply { features: vec!["batch"], ..accepted() }).await,
        }
    }
    for first in (0..50_000_u64).step_by(500) {
        let mut batch = Vec::new();
        for n in first..first + 500 {
            message(["even", "odd"][usize::try_from(n % 2).unwrap()], None, &number(n)).encode(&mut batch);
        }
        peer.0.send(Message::binary(batch)).await.unwrap();
    }
    reading.await.unwrap();
}
