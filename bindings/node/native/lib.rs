//! The native half of the npm package `@nolag/core-rs` in Node: `nolag_core::door`, and nothing else.

use napi::bindgen_prelude::{Either, Function, Uint8Array};
use napi::threadsafe_function::ThreadsafeFunctionCallMode;
use napi::{Error, Result};
use napi_derive::napi;
use nolag_core::door::{self, Settings};
use nolag_core::driver::native;

/// One client. It disconnects when it is collected.
#[napi]
pub struct Door(door::Door);

/// How far the application is with a subscription.
#[napi(object)]
pub struct Position {
    /// The broker's run of numbers.
    pub epoch: String,
    /// The number of the last message.
    pub seq: f64,
}

/// Makes a client of options, or an error of them. `wake` is called when there is something to take, once until it is taken.
#[napi]
pub fn open(options: &[u8], wake: Function<'_, (), ()>) -> Result<Either<Door, Uint8Array>> {
    let made = Settings::read(options).and_then(|settings| Ok((settings.native()?, settings)));
    let (transport, settings) = match made {
        Ok(made) => made,
        Err(error) => {
            let mut bytes = Vec::new();
            door::error(&mut bytes, &error);
            return Ok(Either::B(bytes.into()));
        }
    };
    // Weak: it does not keep a process alive.
    let wake = wake.build_threadsafe_function::<()>().weak::<true>().build()?;
    let wake = move || {
        wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
    };
    let (door, driver) = door::Door::open(settings, Box::new(transport), Box::new(wake));
    let thread = native::background(0).map_err(|fault| Error::from_reason(fault.to_string()))?;
    thread.spawn(driver);
    Ok(Either::A(Door(door)))
}

#[napi]
impl Door {
    /// Carries out commands.
    #[napi]
    pub fn send(&self, commands: &[u8]) -> Result<()> {
        self.0.send(commands).map_err(|fault| Error::from_reason(fault.to_string()))
    }

    /// All items that are ready.
    #[napi]
    pub fn take(&self) -> Option<Uint8Array> {
        let items = self.0.take();
        (!items.is_empty()).then(|| items.into())
    }

    /// How far the application is with a subscription.
    #[napi]
    #[allow(clippy::cast_precision_loss)] // such numbers are below 2^53
    pub fn position(&self, topic: String) -> Option<Position> {
        let position = self.0.position(&topic)?;
        Some(Position { epoch: position.epoch.to_string(), seq: position.seq as f64 })
    }

    /// How many calls are not complete.
    #[napi(getter)]
    #[allow(clippy::cast_possible_truncation)] // of calls there are at most 100,000
    pub fn open_calls(&self) -> u32 {
        self.0.open_calls() as u32
    }

    /// What counts.
    #[napi]
    pub fn stats(&self) -> Uint8Array {
        self.0.stats().into()
    }
}
