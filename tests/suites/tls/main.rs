//! TLS on every port and at every client: who is let in, what happens to certificates that change, and that nothing is open
//! by oversight.

mod engines;
mod fleet;
mod handshakes;
mod harness;
mod letting_in;
mod open;
mod rotation;
mod side;
