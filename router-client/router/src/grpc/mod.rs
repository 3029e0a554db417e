//! The service `kvasir.v1.Router`.

mod read;
mod server;
mod service;
mod write;

pub use server::serve;
pub use service::RouterService;
