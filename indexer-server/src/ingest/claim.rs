//! Conflicts between workers on one socket: decides which worker keeps the socket, and removes the others.

use super::link::check_endpoints;
use super::sockets::Rival;
use super::subscription::{SocketKey, Subscription};
use super::{Ingest, IngestError};
use kvasir_proto::convert::{Registration, WorkerAddress};
use std::collections::HashMap;
use std::sync::Arc;

impl Ingest {
    /// Returns the workers that a registration displaces from its sockets. The caller holds `control`.
    ///
    /// # Errors
    /// If a worker with the same socket does not yield. With `take_over`, all workers of the same tenant yield.
    pub(super) fn displaced(
        &self,
        registration: &Registration,
        take_over: bool,
    ) -> Result<Vec<Rival>, IngestError> {
        let wanted = subscriptions(registration)?;
        let rivals = self.sockets.rivals(&registration.address(), &wanted);
        let keeps = |rival: &&Rival| {
            !(rival.yields || (take_over && rival.is_of_tenant(&registration.partition)))
        };
        rivals.iter().find(keeps).map_or(Ok(()), |rival| Err(rival.refusal(registration)))?;
        Ok(rivals)
    }

    /// Removes the workers whose sockets the worker `by` takes. Skips workers that are already removed. The caller
    /// holds `control`.
    pub(super) async fn displace(
        &self,
        rivals: Vec<Rival>,
        by: &WorkerAddress,
    ) -> Result<(), IngestError> {
        for Rival { worker, endpoint, yields, .. } in rivals {
            // A worker may be listed once for each of its sockets.
            if !self.contains(&worker) {
                continue;
            }
            let reason = if yields {
                "its engine is gone, or another process is at its socket"
            } else {
                "the registration of the other worker takes over"
            };
            tracing::warn!(%worker, %by, endpoint, reason, "worker is removed: another worker takes over its socket");
            self.remove_locked(&worker).await?;
        }
        Ok(())
    }
}

/// Checks that at most one of the workers reads each pair of socket and topic.
///
/// # Errors
/// If two workers follow one socket with overlapping topics, or an endpoint is invalid.
pub fn check_sockets(registrations: &[Registration]) -> Result<(), IngestError> {
    let mut by_key = HashMap::<SocketKey, Vec<(WorkerAddress, Subscription)>>::new();
    for registration in registrations {
        let address = registration.address();
        for wanted in subscriptions(registration)? {
            let Some(key) = wanted.key.clone() else { continue };
            let others = by_key.entry(key).or_default();
            let found = others.iter().find(|(_, at)| at.overlaps(&wanted));
            if let Some((other, Subscription { topic, .. })) = found {
                let endpoint = wanted.endpoint;
                let topic = topic.clone();
                let other = format!("worker {other}");
                return Err(IngestError::SocketInUse { address, endpoint, topic, other });
            }
            others.push((address.clone(), wanted));
        }
    }
    Ok(())
}

/// Subscriptions in a registration.
fn subscriptions(registration: &Registration) -> Result<Vec<Subscription>, IngestError> {
    let sockets = check_endpoints(registration)?;
    let attached = sockets.iter().zip(&registration.endpoints);
    Ok(attached.map(|(at, spec)| Subscription::new(at.attach(), spec, Arc::default())).collect())
}

#[cfg(test)]
#[path = "claim_test.rs"]
mod tests;
