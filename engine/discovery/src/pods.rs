//! Engines that are the pods of a Kubernetes service. Pure: reads objects of the API.

use crate::spec::{ENGINE_FACTS, ENGINES_MAX, EngineSpec, Pod, Stated};
use k8s_openapi::api::core::v1::{self, ObjectReference};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::PartialObjectMeta;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

/// Prefix of labels and annotations with which a pod states facts: `kvasir/events`, `kvasir/block-size`, ….
const PREFIX: &str = "kvasir/";
/// Facts that a pod may state. A pod cannot name a file of this process, such as a key.
const POD_FACTS: [&str; 4] = ["events", "replay", "block-size", "model"];

/// Whether a pod may state a fact.
fn is_pod_fact(key: &str) -> bool {
    POD_FACTS.contains(&key) || ENGINE_FACTS.contains(&key)
}

/// Metadata of a pod.
pub(crate) type PodMeta = PartialObjectMeta<v1::Pod>;

/// A port of a service's pods: `[NAMESPACE/]SERVICE:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Namespace of the service; `None` for the namespace of this process.
    pub(crate) namespace: Option<String>,
    /// Name of the service.
    pub(crate) service: String,
    /// Port of the pods.
    port: Port,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Port {
    Number(u16),
    Name(String),
}

impl FromStr for ServicePort {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, port) = text.rsplit_once(':').ok_or(())?;
        let (namespace, service) = match name.split_once('/') {
            Some((namespace, service)) => (Some(namespace.to_owned()), service),
            None => (None, name),
        };
        let names = [namespace.as_deref().unwrap_or("default"), service, port];
        let is_valid = |text: &&str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        };
        if !names.iter().all(is_valid) {
            return Err(());
        }
        // A name has a letter.
        let is_name = port.chars().any(|c| c.is_ascii_alphabetic());
        let port = match port.parse() {
            Ok(number) if number > 0 => Port::Number(number),
            Err(_name) if is_name => Port::Name(port.to_owned()),
            Ok(_) | Err(_) => return Err(()),
        };
        Ok(Self { namespace, service: service.to_owned(), port })
    }
}

/// The engines of a list, and what of the list cannot be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// The engines.
    pub specs: Vec<EngineSpec>,
    /// Parts of the list that are not understood, each with the reason.
    pub faults: Vec<(String, String)>,
}

/// Returns the engines of a service, without pods that are being deleted. `pods` is `None` for a service without a selector.
/// Otherwise an endpoint counts once `pods` has the metadata of its pod.
pub(crate) fn engines(
    at: &ServicePort,
    stated: &Stated,
    slices: &[Arc<EndpointSlice>],
    pods: Option<&[Arc<PodMeta>]>,
) -> Listed {
    let pods: Option<BTreeMap<&str, &PodMeta>> = pods.map(|pods| {
        let by_uid = pods.iter().filter_map(|pod| Some((pod.metadata.uid.as_deref()?, &**pod)));
        by_uid.collect()
    });
    // IPv4 before IPv6: a pod with two addresses is one engine.
    let mut slices: Vec<_> = slices.iter().collect();
    slices.sort_by_key(|slice| (&slice.address_type, &slice.metadata.name));
    let mut listed = Listed::default();
    let mut seen = BTreeSet::new();
    // An empty slice, as of a service without pods, has no ports.
    for slice in slices.into_iter().filter(|slice| !slice.endpoints.is_empty()) {
        let Some(port) = port_of(at, slice) else {
            let Port::Name(name) = &at.port else { continue };
            let why =
                format!("has no port named {name:?}: name a port of the service, or a number");
            listed.faults.push((format!("service {}", at.service), why));
            continue;
        };
        for endpoint in &slice.endpoints {
            let Some(address) = endpoint.addresses.first().filter(|_| !is_ending(endpoint)) else {
                continue;
            };
            let host = match slice.address_type.as_str() {
                "IPv6" => format!("[{address}]:{port}"),
                _ => format!("{address}:{port}"),
            };
            let target =
                endpoint.target_ref.as_ref().filter(|at| at.kind.as_deref() == Some("Pod"));
            let uid = target.and_then(|target| target.uid.as_deref());
            let meta = match (uid, &pods) {
                (Some(uid), Some(pods)) => match pods.get(uid) {
                    Some(pod) if pod.metadata.deletion_timestamp.is_none() => Some(*pod),
                    Some(_) | None => continue,
                },
                (Some(_), None) | (None, Some(_) | None) => None,
            };
            if !seen.insert(uid.unwrap_or(&host).to_owned()) {
                continue;
            }
            let pod = target.and_then(pod_of);
            let name = pod.as_ref().map_or_else(|| host.clone(), |pod| pod.name.clone());
            let unknown = meta.into_iter().flat_map(unknown_keys);
            listed.faults.extend(unknown.map(|why| (name.clone(), why)));
            let facts = meta.map_or_else(|| Ok(String::new()), facts_of);
            match facts.and_then(|facts| stated.engine(&host, &facts)) {
                Ok(spec) => listed.specs.push(EngineSpec { pod, ..spec }),
                Err(why) => listed.faults.push((name, why)),
            }
        }
    }
    listed.specs.sort_by_key(EngineSpec::name);
    // The others stay, so that engines that go are still noticed.
    let mut earlier = String::new();
    listed.specs.retain(|spec| {
        let name = spec.name();
        let is_new = name != earlier;
        if !is_new {
            listed.faults.push((name.clone(), "another pod has the same name".to_owned()));
        }
        earlier = name;
        is_new
    });
    if listed.specs.len() > ENGINES_MAX {
        let why = format!(
            "{} engines are too many: the first {ENGINES_MAX} are used",
            listed.specs.len()
        );
        listed.faults.push((format!("service {}", at.service), why));
        listed.specs.truncate(ENGINES_MAX);
    }
    listed.faults.sort();
    listed.faults.dedup();
    listed
}

/// The number of the port in a slice; `None` if the slice lacks the port.
fn port_of(at: &ServicePort, slice: &EndpointSlice) -> Option<u16> {
    match &at.port {
        Port::Number(number) => Some(*number),
        Port::Name(name) => {
            let mut ports = slice.ports.iter().flatten();
            let port = ports.find(|port| port.name.as_ref() == Some(name))?.port?;
            u16::try_from(port).ok()
        }
    }
}

fn is_ending(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.terminating) == Some(true)
}

fn pod_of(target: &ObjectReference) -> Option<Pod> {
    Some(Pod { name: target.name.clone()?, uid: target.uid.clone()? })
}

/// Labels or annotations with the prefix, without it.
fn prefixed(pairs: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&str, &str)> {
    let pairs = pairs.into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value.as_str())))
}

/// Facts of a pod, as they stand after an engine's URL. Of two, the last one holds: the annotation.
fn facts_of(pod: &PodMeta) -> Result<String, String> {
    let labels = prefixed(pod.metadata.labels.as_ref());
    let stated = labels.chain(prefixed(pod.metadata.annotations.as_ref()));
    let mut facts = String::new();
    for (key, value) in stated.filter(|(key, _)| is_pod_fact(key)) {
        if value.contains(',') {
            return Err(format!("{PREFIX}{key}: {value:?} must not contain a comma"));
        }
        facts.extend([",", key, "=", value]);
    }
    Ok(facts)
}

/// Annotations that nobody reads. Labels may be there for others.
fn unknown_keys(pod: &PodMeta) -> impl Iterator<Item = String> {
    let stated = prefixed(pod.metadata.annotations.as_ref());
    stated.filter(|(key, _)| !is_pod_fact(key)).map(|(key, _)| {
        let known = POD_FACTS.iter().chain(&ENGINE_FACTS).map(|key| format!("{PREFIX}{key}"));
        let known = known.collect::<Vec<_>>().join(", ");
        format!("the pod's {PREFIX}{key} is ignored: use {known}")
    })
}

#[cfg(test)]
#[path = "pods_test.rs"]
mod tests;
