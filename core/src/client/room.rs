//! Names built from app and room (client-api 15, K-057).

use nolag_protocol::topic::check_name;
use serde::Serialize;

use super::{Client, Publish, Subscribe};
use crate::error::Error;
use crate::event::{Actor, Room as RoomKey};
use crate::payload;

/// An app's rooms.
#[derive(Debug, Clone)]
pub struct App {
    client: Client,
    slug: String,
}

impl App {
    pub(super) fn new(client: Client, slug: &str) -> Result<Self, Error> {
        Ok(Self { client, slug: checked(slug)? })
    }

    /// A room of the app.
    pub fn room(&self, slug: &str) -> Result<Room, Error> {
        Ok(Room { client: self.client.clone(), app: self.slug.clone(), slug: checked(slug)? })
    }
}

/// One room: its topics, and who is there.
///
/// Without the feature `rooms` a broker knows a room by its slug alone: equal slugs of two apps are one room to it.
#[derive(Debug, Clone)]
pub struct Room {
    client: Client,
    app: String,
    slug: String,
}

impl Room {
    /// The full name of one of the room's topics.
    pub fn topic(&self, name: &str) -> Result<String, Error> {
        Ok(format!("{}/{}/{}", self.app, self.slug, checked(name)?))
    }

    /// Publishes to one of the room's topics.
    pub fn publish<T: Serialize + ?Sized>(&self, name: &str, payload: &T) -> Result<Publish, Error> {
        Ok(self.client.publish(&self.topic(name)?, payload))
    }

    /// Subscribes to one of the room's topics.
    pub fn subscribe(&self, name: &str) -> Result<Subscribe, Error> {
        Ok(self.client.subscribe(&self.topic(name)?))
    }

    /// Announces this client in the room, on every connection from now on.
    pub async fn set_presence<T: Serialize + ?Sized>(&self, data: &T) -> Result<(), Error> {
        let data = payload::encode(&self.slug, data)?;
        self.client.set_presence(self.key(), Some(data)).await
    }

    /// Leaves the room.
    pub async fn clear_presence(&self) -> Result<(), Error> {
        self.client.set_presence(self.key(), None).await
    }

    /// Asks the broker who is in the room.
    pub async fn fetch_presence(&self) -> Result<Vec<Actor>, Error> {
        self.client.fetch_presence(self.key()).await
    }

    fn key(&self) -> RoomKey {
        RoomKey { app: Some(self.app.clone()), room: self.slug.clone() }
    }
}

fn checked(name: &str) -> Result<String, Error> {
    check_name(name).map(|()| name.to_owned()).map_err(|fault| Error::Config {
        code: "bad_option",
        message: format!("{name:?} is no name of an app, room or topic: {fault}"),
    })
}
