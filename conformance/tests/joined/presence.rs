//! Who is in the rooms: what clients announce, what they are told, and what is true.

use std::collections::{BTreeMap, BTreeSet};

use nolag_core::Client;
use nolag_core::client::Room;
use nolag_core::event::{Actor, Change};

use crate::place::ACTORS;
use crate::record::Record;
use crate::world::{Peer, World, lock};

/// The rooms; without the feature `rooms` a connection is in one only, and the clients use the first.
const ROOMS: [&str; 2] = ["hall", "loft"];

/// By room and actor: the data of each connection, in rising order.
type Roster = BTreeMap<(String, String), Vec<u64>>;

fn room(client: &Client, name: &str) -> Room {
    client.app("demo").and_then(|app| app.room(name)).expect("a name of a room")
}

/// The data of a member's connections.
fn connections(actor: &Actor) -> Vec<u64> {
    let number = |data: &bytes::Bytes| rmpv::decode::read_value(&mut &data[..]).ok()?.as_u64();
    let mut numbers: Vec<u64> = actor.connections.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

impl World {
    /// A client says something about itself in a room, or leaves it.
    pub(crate) fn announce(&mut self, index: usize) {
        let name = ROOMS[if self.many_rooms { self.rng.usize(..ROOMS.len()) } else { 0 }];
        // Who leaves stays in the lists of the kraken profile, without data.
        let leaves = !self.kraken && self.rng.u8(..) < 60;
        self.announced += 1;
        let data = self.announced;
        let peer = &mut self.peers[index];
        let (number, room) = (peer.number, room(&peer.client, name));
        if leaves {
            peer.present.remove(name);
            lock(&self.record).rosters.left.insert((number, name));
        } else {
            peer.present.insert(name, data);
        }
        self.tell(|| format!("client {number} {} {name}", if leaves { "leaves" } else { "is present in" }));
        self.call("presence", async move {
            drop(if leaves { room.clear_presence().await } else { room.set_presence(&data).await });
        });
    }

    /// Asks the broker who is in a room; the answer may come at any time, and is not looked at.
    pub(crate) fn ask_who(&mut self, index: usize) {
        let room = room(&self.peers[index].client, ROOMS[0]);
        self.call("presence list", async move { drop(room.fetch_presence().await) });
    }

    /// What is true.
    fn present(&self) -> Roster {
        let mut truth = Roster::new();
        for Peer { actor, present, .. } in &self.peers {
            for (room, data) in present {
                truth.entry(((*room).to_owned(), ACTORS[*actor].to_owned())).or_default().push(*data);
            }
        }
        for connections in truth.values_mut() {
            connections.sort_unstable();
        }
        truth
    }

    /// Compares with what is true what the broker lists, and what the clients were told that are there.
    pub(crate) async fn presence_faults(&self) -> Vec<String> {
        let truth = self.present();
        let of_room = |roster: &Roster, name: &str| -> Vec<(String, Vec<u64>)> {
            let of_room = roster.iter().filter(|((room, _), _)| room == name);
            of_room.map(|((_, actor), connections)| (actor.clone(), connections.clone())).collect()
        };
        let mut faults = Vec::new();
        for name in ROOMS {
            let truth = of_room(&truth, name);
            for peer in &self.peers {
                let actors = match room(&peer.client, name).fetch_presence().await {
                    Ok(actors) => actors,
                    Err(error) => {
                        faults.push(format!("no list of {name} for client {}: {error}", peer.number));
                        continue;
                    }
                };
                let mut listed: Vec<_> =
                    actors.iter().map(|actor| (actor.actor_id.clone(), connections(actor))).collect();
                listed.sort_unstable();
                if listed != truth {
                    faults.push(format!("{name} lists {listed:?} to client {}, not {truth:?}", peer.number));
                }
                let told = of_room(&lock(&self.record).rosters.of(peer.number), name);
                let is_told = peer.present.contains_key(name);
                if is_told && !lock(&self.record).rosters.left.contains(&(peer.number, name)) && told != truth
                {
                    faults.push(format!(
                        "client {} was told of {told:?} in {name}, not {truth:?}",
                        peer.number
                    ));
                }
            }
        }
        faults
    }
}

/// What clients were told of who is present.
#[derive(Default)]
pub(crate) struct Rosters {
    /// By client.
    told: BTreeMap<usize, Roster>,
    /// Clients that have left a room: what they were told of it is out of date since, and they are told anew when they come back.
    left: BTreeSet<(usize, &'static str)>,
}

impl Rosters {
    fn of(&self, client: usize) -> Roster {
        self.told.get(&client).cloned().unwrap_or_default()
    }
}

/// A client was told of a change: joins and leaves of an actor take turns.
pub(crate) fn told(record: &mut Record, client: usize, change: Change, actor: &Actor) {
    let Some(room) = &actor.room else {
        record.oddities.push(format!("client {client}: {change:?} of {} in no room", actor.actor_id));
        return;
    };
    let key = (room.room.clone(), actor.actor_id.clone());
    record.tell(|| format!("client {client}: {change:?} of {key:?}: {:?}", connections(actor)));
    let roster = record.rosters.told.entry(client).or_default();
    let was_there = match change {
        Change::Join | Change::Update => roster.insert(key.clone(), connections(actor)).is_some(),
        Change::Leave => roster.remove(&key).is_some(),
        Change::Waking => return,
    };
    let has_left = record.rosters.left.iter().any(|(number, name)| *number == client && *name == room.room);
    if !has_left && was_there != (change != Change::Join) {
        record.oddities.push(format!("client {client}: {change:?} of {key:?}, who was there: {was_there}"));
    }
}
