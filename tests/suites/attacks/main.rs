//! Clients that mean harm, on loopback, against a real server process. Each attack takes resources that used
//! not to be bounded; beside it a healthy client asks and `/livez` is read, and the bars of
//! [`harness::Siege`] must hold.

mod descriptors;
mod harness;
mod peer;

mod answers;
mod lists;
mod publishers;
mod requests;
mod secrets;
mod side;
mod silent_agents;
