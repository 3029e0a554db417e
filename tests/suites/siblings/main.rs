//! A replica that begins with an empty disk beside one that has been there for long: what it copies,
//! what it does when the copy breaks off, and that nobody waits for anybody.

mod agents;
mod bare;
mod broken;
mod gate;
mod harness;
mod starts;
