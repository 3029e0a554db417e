//! Clients that mean harm, on loopback, against a real server process. Each attack takes resources that used
//! not to be bounded; beside it a healthy client asks and `/livez` is read, and the bars of
//! [`harness::Siege`] must hold.

#![allow(
    clippy::disallowed_methods,
    reason = "attackers and witnesses are tasks that end with their test"
)]

mod descriptors;
mod harness;
mod peer;

mod answers;
mod dumps;
mod empty_ranks;
mod lists;
mod names;
mod publishers;
mod queries;
mod registrations;
mod requests;
mod secrets;
mod sequences;
mod side;
mod silent_agents;
