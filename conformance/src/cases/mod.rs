//! The statements, by chapter. Each file starts with its table; each case is one function.

mod authorization;
mod balance;
mod delivery;
mod encoding;
mod features;
mod filters;
mod handshake;
mod limits;
mod lobbies;
mod malformed;
mod operation;
mod presence;
mod publishing;
mod recovery;
mod redelivery;
mod restoring;
mod retained;
mod revalidation;
mod subscriptions;
mod topics;
mod transport;

use crate::suite::Case;

/// Every statement that the suite knows.
pub(crate) fn all() -> Vec<Case> {
    [
        transport::cases(),
        encoding::cases(),
        malformed::cases(),
        handshake::cases(),
        authorization::cases(),
        revalidation::cases(),
        topics::cases(),
        subscriptions::cases(),
        filters::cases(),
        delivery::cases(),
        publishing::cases(),
        retained::cases(),
        limits::cases(),
        balance::cases(),
        presence::cases(),
        lobbies::cases(),
        operation::cases(),
        features::cases(),
        recovery::cases(),
        redelivery::cases(),
        restoring::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
