use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Version of this server.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn register(registry: &mut Registry) {
    let info = Info::new([("version", VERSION)]);
    registry.register("build", "Version of this server", info);
}
