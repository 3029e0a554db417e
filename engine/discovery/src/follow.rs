//! Follows the engines: registers engines that answer, and removes engines that stay silent or leave the list.

use crate::facts::{Facts, FactsError, ask, labels};
use crate::pods::Listed;
use crate::registrar::Registrar;
use crate::source::{EngineList, EngineSource, distinct};
use crate::spec::EngineSpec;
use futures::{StreamExt, stream};
use kvasir_engine_http::{EngineClient, EngineKeys};
use kvasir_proto::convert::Registration;
use kvasir_tls::Token;
use std::collections::BTreeMap;
use std::future::pending;
use std::slice;
use std::time::Duration;
use tokio::select;
use tokio::signal::unix::Signal;
use tokio::time::{Instant, sleep_until, timeout};

/// Interval of asking the engines.
const INTERVAL: Duration = Duration::from_secs(5);
/// First interval of asking the engines while none answers; each further one lasts twice as long.
const FIRST_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of engines that are asked concurrently.
const ASKED_MAX: usize = 16;
/// Maximum time to read the list of engines: name servers may be away.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an engine is checked again that has failed its check.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What a program does with the engines besides their registration.
pub trait Observer: Send {
    /// A round has asked all engines once.
    fn end_round(&mut self, watch: &Watch);

    /// Takes an engine whose check is due. If it returns false, the check stays due.
    fn check(&mut self, _seen: &Seen) -> bool {
        true
    }

    /// Whether the last check of an engine found a fault.
    fn is_faulty(&self, _engine: &str) -> bool {
        false
    }
}

/// The engines, with the clients that register them.
#[derive(Debug)]
pub struct Engines {
    /// Engines on the command line.
    pub named: Vec<EngineSpec>,
    /// Further engines, from a list that may change.
    pub source: Option<EngineSource>,
    /// Asks the engines.
    pub client: EngineClient,
    /// Keys of the engines' APIs, which `client` sends.
    pub keys: EngineKeys,
    /// The index.
    pub registrar: Registrar,
    /// Time after which an engine that does not answer is removed.
    pub timeout: Duration,
}

/// A registered engine.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The engine, as the user named it.
    pub spec: EngineSpec,
    /// Facts that it stated.
    pub facts: Facts,
}

/// State of the engines between two rounds.
#[derive(Debug, Default)]
pub struct Watch {
    known: BTreeMap<String, Known>,
    list: Option<EngineList>,
    /// The last list that could be read.
    specs: Vec<EngineSpec>,
    /// Parts of this list that cannot be used, each with the reason.
    list_faults: Vec<(String, String)>,
    /// Whether the list has changed since the last round began: engines may be new.
    has_changed: bool,
    /// Why the list could not be read.
    list_problem: Option<String>,
    /// Whether the index's workers were compared with the list.
    has_compared: bool,
}

/// One engine.
#[derive(Debug, Default)]
struct Known {
    /// The registered engine; `None` before its first answer, and after its removal.
    registered: Option<Registered>,
    problem: Option<String>,
    /// Since when it has not answered.
    silent_since: Option<Instant>,
    /// Time of the last check that was ordered; `None` if one is due.
    checked_at: Option<Instant>,
}

/// An engine that the index has.
#[derive(Debug)]
struct Registered {
    spec: EngineSpec,
    registration: Registration,
    /// `None` until the engine answers, if a checkpoint or a replica has brought it.
    facts: Option<Facts>,
}

impl Registered {
    /// Whether a registration is of the same worker in the same partition.
    fn is_at(&self, other: &Registration) -> bool {
        self.registration.address() == other.address()
    }

    fn seen(&self) -> Option<Seen> {
        Some(Seen { spec: self.spec.clone(), facts: self.facts.clone()? })
    }
}

impl Watch {
    /// Problems with the list and with engines, one line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let of_engines = self.faults().into_iter().map(|(name, why)| format!("{name}: {why}"));
        of_engines.collect()
    }

    /// The list if it cannot be read, and engines that do not answer or cannot be registered, each with the reason.
    #[must_use]
    pub fn faults(&self) -> Vec<(String, String)> {
        let of_list = self.list_problem.iter().map(|why| ("engines-from".to_owned(), why.clone()));
        let of_list = of_list.chain(self.list_faults.iter().cloned());
        let fault = |(name, known): (&String, &Known)| Some((name.clone(), known.problem.clone()?));
        of_list.chain(self.known.iter().filter_map(fault)).collect()
    }

    /// Waits until Kubernetes reports a change of the list; see [`EngineList::changed`]. May be cancelled at any time.
    async fn changed(&mut self) {
        match &mut self.list {
            Some(list) => list.changed().await,
            None => pending().await,
        }
    }

    /// Whether the list has changed since the last round began.
    const fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Whether an engine of this name is followed.
    #[must_use]
    pub fn names(&self, engine: &str) -> bool {
        self.known.contains_key(engine)
    }

    /// Number of registered engines that have answered.
    #[must_use]
    pub fn registered(&self) -> usize {
        let registered = self.known.values().filter_map(|known| known.registered.as_ref());
        registered.filter(|registered| registered.facts.is_some()).count()
    }
}

impl Engines {
    /// Asks the engines at an interval, at each SIGHUP, and soon after a change of the list, without end.
    pub async fn follow(&self, mut hangup: Signal, mut observer: impl Observer) {
        let mut watch = Watch::default();
        let mut first = FIRST_INTERVAL;
        loop {
            self.round(&mut watch, &mut observer).await;
            let pause = if watch.registered() == 0 {
                let pause = first;
                first = (2 * first).min(INTERVAL);
                pause
            } else {
                first = FIRST_INTERVAL;
                INTERVAL
            };
            let ended = Instant::now();
            loop {
                // Engines that are new in the list are asked soon, but not at each of many changes.
                let pause = if watch.has_changed() { FIRST_INTERVAL } else { pause };
                select! {
                    () = sleep_until(ended + pause) => break,
                    () = watch.changed() => self.apply_list(&mut watch).await,
                    _again = hangup.recv() => {
                        tracing::info!("SIGHUP: asking the engines");
                        break;
                    }
                }
            }
        }
    }

    /// Asks each engine once. Registers engines that answer, and removes engines that left the list or were silent for
    /// too long. The observer gets engines whose check is due: new ones, those that have started again or changed, and
    /// from time to time those with a fault.
    pub async fn round(&self, watch: &mut Watch, observer: &mut impl Observer) {
        self.apply_list(watch).await;
        watch.has_changed = false;
        self.compare(watch).await;
        let asking = watch.specs.clone().into_iter().map(|spec| {
            let before = watch.known.get(&spec.name()).and_then(|known| known.registered.as_ref());
            let before = before.filter(|before| before.spec == spec);
            let before = before.and_then(|before| before.facts.clone());
            async move {
                let facts = self.facts(&spec, before.as_ref()).await;
                (spec, facts)
            }
        });
        // In the order of the list: of two engines with one socket, the first one has it.
        let asking: Vec<_> = asking.collect();
        let mut answers = stream::iter(asking).buffered(ASKED_MAX);
        loop {
            let answer = select! {
                answer = answers.next() => answer,
                // The removal of an engine does not wait for others that are silent.
                () = watch.changed() => {
                    self.apply_list(watch).await;
                    continue;
                }
            };
            let Some((spec, facts)) = answer else { break };
            if !watch.specs.contains(&spec) {
                continue;
            }
            let name = spec.name();
            let known = watch.known.remove(&name);
            let mut known = self.update(&spec, facts, known).await;
            let is_due = match known.checked_at {
                None => true,
                Some(at) => at.elapsed() >= RECHECK_INTERVAL && observer.is_faulty(&name),
            };
            let registered = known.registered.as_ref().filter(|_| known.problem.is_none());
            if let Some(seen) = registered.and_then(Registered::seen).filter(|_| is_due)
                // Without room, the check stays due.
                && observer.check(&seen)
            {
                known.checked_at = Some(Instant::now());
            }
            watch.known.insert(name, known);
        }
        observer.end_round(watch);
    }

    /// Compares the index's workers with the list: a checkpoint or a replica may have brought engines that are gone, and
    /// others may have removed engines. A shared index is compared in each round.
    async fn compare(&self, watch: &mut Watch) {
        let is_shared = self.registrar.is_shared();
        if watch.list_problem.is_some() || (watch.has_compared && !is_shared) {
            return;
        }
        let present = match self.registrar.present().await {
            Ok(present) => present,
            Err(why) => {
                tracing::warn!("the index does not list its workers: {why}");
                return;
            }
        };
        watch.has_compared = true;
        for known in watch.known.values_mut() {
            known.registered.take_if(|registered| !present.has(&registered.registration));
        }
        let (listed, gone) = present.divide(&watch.specs);
        for registration in &gone {
            let engine = registration.worker.as_str();
            tracing::info!(engine, "the engine is no longer in the list: removed");
        }
        self.registrar.remove(&gone).await;
        for (spec, registration) in listed {
            let known = watch.known.entry(spec.name()).or_default();
            match &known.registered {
                // The engine had another model.
                Some(registered) if !registered.is_at(&registration) => {
                    self.registrar.remove(&[registration]).await;
                }
                Some(_) => {}
                None => known.registered = Some(Registered { spec, registration, facts: None }),
            }
        }
    }

    /// Reads the list. Removes engines that left it, and those whose pod or address is another one now.
    async fn apply_list(&self, watch: &mut Watch) {
        self.read_list(watch).await;
        let specs: BTreeMap<_, _> = watch.specs.iter().map(|spec| (spec.name(), spec)).collect();
        let gone = watch.known.iter().filter(|(name, known)| {
            let is_other = |spec: &&EngineSpec| {
                let registered = known.registered.as_ref();
                registered.is_some_and(|registered| labels(&registered.spec) != labels(spec))
            };
            specs.get(*name).is_none_or(is_other)
        });
        let mut removed = Vec::new();
        for name in gone.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            let known = watch.known.remove(&name);
            if let Some(registered) = known.and_then(|known| known.registered) {
                tracing::info!(engine = name, "the engine is no longer in the list: removed");
                self.keys.remove(&registered.spec.url);
                removed.push(registered.registration);
            }
        }
        self.registrar.remove(&removed).await;
    }

    /// Reads the list. If it cannot be read, the engines stay as they are.
    async fn read_list(&self, watch: &mut Watch) {
        let mut specs = self.named.clone();
        let list = match &self.source {
            Some(source) => {
                let list = watch.list.get_or_insert_with(|| EngineList::new(source.clone()));
                let late = |_late| Err(format!("no answer within {LIST_TIMEOUT:?}"));
                timeout(LIST_TIMEOUT, list.read()).await.unwrap_or_else(late)
            }
            None => Ok(Listed::default()),
        };
        let listed = list.and_then(|Listed { specs: listed, faults }| {
            specs.extend(listed);
            Ok((distinct(specs)?, faults))
        });
        match listed {
            Ok((mut specs, faults)) => {
                specs.retain(|spec| self.registrar.owns(spec));
                for (name, why) in faults.iter().filter(|fault| !watch.list_faults.contains(fault))
                {
                    tracing::error!("engines-from: {name}: {why}");
                }
                watch.list_faults = faults;
                watch.has_changed |= watch.specs != specs;
                watch.specs = specs;
                watch.list_problem = None;
            }
            Err(why) => {
                if watch.list_problem.as_ref() != Some(&why) {
                    tracing::error!("engines-from: {why}");
                }
                watch.list_problem = Some(why);
                watch.list_faults.clear();
                if watch.specs.is_empty() {
                    watch.specs.clone_from(&self.named);
                }
            }
        }
    }

    async fn facts(&self, spec: &EngineSpec, before: Option<&Facts>) -> Result<Facts, FactsError> {
        match spec.key_file.clone() {
            Some(file) => {
                let key = Token::open("key-file", file);
                let key = key.map_err(|error| FactsError::Stated(error.to_string()))?;
                self.keys.set(&spec.url, key);
            }
            None => self.keys.remove(&spec.url),
        }
        ask(&self.client, spec, before).await
    }

    /// Registers an engine with the facts that it stated, or removes it if it was silent for too long. A problem is
    /// logged when it is new.
    async fn update(
        &self,
        spec: &EngineSpec,
        facts: Result<Facts, FactsError>,
        known: Option<Known>,
    ) -> Known {
        let engine = spec.name();
        let mut known = known.unwrap_or_default();
        let registered = match facts {
            Ok(facts) => {
                known.silent_since = None;
                self.register(spec, facts, known.registered.as_ref()).await
            }
            Err(error) => {
                known.silent_since.get_or_insert_with(Instant::now);
                Err(error.to_string())
            }
        };
        match registered {
            Ok(registered) => {
                let started_at = |at: &Registered| at.facts.as_ref().map(|facts| facts.started_at);
                let is_same = known.registered.as_ref().is_some_and(|earlier| {
                    started_at(earlier) == started_at(&registered)
                        && earlier.registration == registered.registration
                });
                // Without a time of the start, an engine that was away may have started again.
                let was_away = known.problem.is_some() && started_at(&registered) == Some(None);
                if let Some(Facts { model, block_size, blocks, .. }) = &registered.facts
                    && (!is_same || known.problem.is_some())
                {
                    tracing::info!(engine, model, block_size, blocks, "the engine answers");
                }
                if !is_same || was_away {
                    known.checked_at = None;
                }
                known.registered = Some(registered);
                known.problem = None;
            }
            Err(why) => {
                if known.problem.as_ref() != Some(&why) {
                    tracing::error!(engine, "{why}");
                }
                known.problem = Some(why);
                if known.silent_since.is_some_and(|since| since.elapsed() >= self.timeout)
                    && let Some(registered) = known.registered.take()
                {
                    tracing::warn!(engine, "the engine was silent for too long: removed");
                    self.registrar.remove(&[registered.registration]).await;
                    known.checked_at = None;
                }
            }
        }
        known
    }

    /// Registers an engine, unless the index has it as it is. With other facts than before, it is removed first, and loses
    /// its blocks.
    async fn register(
        &self,
        spec: &EngineSpec,
        facts: Facts,
        before: Option<&Registered>,
    ) -> Result<Registered, String> {
        let registration = self.registrar.registration(spec, &facts)?;
        // The index itself compares what a checkpoint has brought.
        let is_other = |before: &&Registered| match before.facts {
            Some(_) => before.registration != registration,
            None => !before.is_at(&registration),
        };
        if let Some(before) = before.filter(is_other) {
            self.registrar.remove(slice::from_ref(&before.registration)).await;
        }
        let is_known = |before: &Registered| before.facts.is_some() && !is_other(&before);
        // A shared index was just asked for its workers.
        if !self.registrar.is_shared() || !before.is_some_and(is_known) {
            self.registrar.register(&registration).await?;
        }
        Ok(Registered { spec: spec.clone(), registration, facts: Some(facts) })
    }
}
