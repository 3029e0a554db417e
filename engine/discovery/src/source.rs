//! Where the engines come from: the command line, a file, DNS, or Kubernetes.

use crate::kubernetes::ServiceWatch;
use crate::pods::{Listed, ServicePort};
use crate::spec::{ENGINES_MAX, EngineSpec, Stated};
use hickory_resolver::TokioResolver;
use hickory_resolver::proto::rr::RData;
use hyper::http::uri::Authority;
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::PathBuf;
use std::str::FromStr;
use tokio::fs;
use tokio::net::lookup_host;

/// Maximum size of a file of engines, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A list of engines that may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineSource {
    /// A file with one engine a line.
    File(PathBuf),
    /// All addresses of a name, with one port.
    Dns(String, u16, Stated),
    /// Hosts and ports in the SRV records of a name.
    Srv(String, Stated),
    /// The pods of a Kubernetes service.
    Kubernetes(ServicePort, Stated),
}

/// A list of engines that is being read.
#[derive(Debug)]
pub struct EngineList {
    source: EngineSource,
    watch: Option<ServiceWatch>,
}

impl FromStr for EngineSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let syntax_error = || {
            format!(
                "{text:?} must be file:PATH, dns:NAME:PORT, dns:_PORT._tcp.NAME for SRV records, or \
                 kubernetes:[NAMESPACE/]SERVICE:PORT"
            )
        };
        match text.split_once(':').ok_or_else(syntax_error)? {
            ("file", path) if !path.is_empty() => Ok(Self::File(path.into())),
            ("dns", rest) => {
                let (address, stated) = Stated::split(rest)?;
                if address.starts_with('_') && !address.contains(':') {
                    return Ok(Self::Srv(address.to_owned(), stated));
                }
                let (name, port) = address.rsplit_once(':').ok_or_else(syntax_error)?;
                let port = port.parse().ok().filter(|port| *port > 0 && !name.is_empty());
                Ok(Self::Dns(name.to_owned(), port.ok_or_else(syntax_error)?, stated))
            }
            ("kubernetes", rest) => {
                let (address, stated) = Stated::split(rest)?;
                Ok(Self::Kubernetes(address.parse().map_err(|()| syntax_error())?, stated))
            }
            _ => Err(syntax_error()),
        }
    }
}

impl EngineList {
    /// A list that has not been read yet.
    #[must_use]
    pub const fn new(source: EngineSource) -> Self {
        Self { source, watch: None }
    }

    /// The current engines. May be cancelled at any time.
    ///
    /// # Errors
    /// If the file, the name or the service cannot be read, or the file has an invalid line.
    pub async fn read(&mut self) -> Result<Listed, String> {
        let specs = match &self.source {
            EngineSource::Kubernetes(at, stated) => {
                let watch = match &mut self.watch {
                    Some(watch) => watch,
                    none @ None => none.insert(ServiceWatch::start(at, stated).await?),
                };
                return watch.list().await;
            }
            EngineSource::File(path) => {
                let at_file = |why: String| format!("{}: {why}", path.display());
                let size =
                    fs::metadata(path).await.map_err(|error| at_file(error.to_string()))?.len();
                if size > FILE_BYTES_MAX {
                    return Err(at_file(format!("has {size} bytes, at most {FILE_BYTES_MAX}")));
                }
                let text = fs::read_to_string(path).await;
                let text = text.map_err(|error| at_file(error.to_string()))?;
                let specs = parse_lines(&text).map_err(at_file)?;
                // A file that is just being written is not an order to remove all engines.
                if specs.is_empty() {
                    return Err(at_file("lists no engine".to_owned()));
                }
                specs
            }
            EngineSource::Dns(name, port, stated) => {
                let found = lookup_host((name.as_str(), *port)).await;
                let found = found.map_err(|error| format!("{name}: {error}"))?;
                let specs = found.map(|address| stated.engine(&address.to_string(), ""));
                let mut specs = specs.collect::<Result<Vec<EngineSpec>, _>>()?;
                specs.sort_by_key(EngineSpec::name);
                specs
            }
            EngineSource::Srv(name, stated) => {
                // Built each time, since the system's configuration may have changed.
                let resolver = TokioResolver::builder_tokio().and_then(|builder| builder.build());
                let resolver = resolver.map_err(|error| format!("{name}: {error}"))?;
                services(&resolver, name, stated).await?
            }
        };
        Ok(Listed { specs, faults: Vec::new() })
    }

    /// Waits until Kubernetes reports a change of the list. Files and DNS report none, so the wait has no end. May be
    /// cancelled at any time.
    pub async fn changed(&mut self) {
        match &mut self.watch {
            Some(watch) => watch.changed().await,
            None => pending().await,
        }
    }
}

/// The engines in the SRV records of a name.
async fn services(
    resolver: &TokioResolver,
    name: &str,
    stated: &Stated,
) -> Result<Vec<EngineSpec>, String> {
    let found = resolver.srv_lookup(name).await.map_err(|error| format!("{name}: {error}"))?;
    let records = found.answers().iter().filter_map(|record| {
        let RData::SRV(service) = &record.data else { return None };
        Some((service.target.to_ascii(), service.port))
    });
    // By port 0 or the target ".", a name says that the service is not there.
    let records = records.filter(|(target, port)| *port != 0 && target != ".");
    let specs = records.map(|(target, port)| format!("{}:{port}", target.trim_end_matches('.')));
    let mut specs = specs.map(|at| stated.engine(&at, "")).collect::<Result<Vec<_>, _>>()?;
    if specs.is_empty() {
        return Err(format!("{name}: has no SRV records"));
    }
    specs.sort_by_key(EngineSpec::name);
    specs.dedup_by_key(|spec| spec.name());
    Ok(specs)
}

/// Reads the lines of a file. Empty lines and comments (`#`) are skipped.
fn parse_lines(text: &str) -> Result<Vec<EngineSpec>, String> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let specs = lines.map(|(number, line)| {
        line.parse::<EngineSpec>().map_err(|why| format!("line {number}: {why}"))
    });
    distinct(specs.collect::<Result<_, _>>()?)
}

/// Checks that no engine is listed twice, and that there are not too many.
///
/// # Errors
/// Names the engine, or the limit.
pub fn distinct(specs: Vec<EngineSpec>) -> Result<Vec<EngineSpec>, String> {
    if specs.len() > ENGINES_MAX {
        return Err(format!("{} engines are too many, the limit is {ENGINES_MAX}", specs.len()));
    }
    let mut seen = BTreeSet::new();
    let mut keys = BTreeMap::new();
    for spec in &specs {
        if !seen.insert(spec.name()) {
            return Err(format!("{} is listed twice", spec.name()));
        }
        // A key belongs to a host and port.
        if let Some(other) =
            keys.insert(spec.url.authority().map(Authority::as_str), &spec.key_file)
            && *other != spec.key_file
        {
            return Err(format!("{}: engines at one host and port need one key-file", spec.name()));
        }
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
    use hickory_resolver::proto::rr::rdata::SRV;
    use hickory_resolver::proto::rr::{Name, Record};
    use tokio::net::UdpSocket;

    #[test]
    fn sources_are_files_or_names() {
        let read = |text: &str| text.parse::<EngineSource>();
        let none = Stated::default;
        assert_eq!(read("file:/etc/engines"), Ok(EngineSource::File("/etc/engines".into())));
        assert_eq!(
            read("dns:vllm.prod.svc:8000"),
            Ok(EngineSource::Dns("vllm.prod.svc".to_owned(), 8000, none()))
        );
        assert_eq!(
            read("dns:_http._tcp.vllm.prod.svc"),
            Ok(EngineSource::Srv("_http._tcp.vllm.prod.svc".to_owned(), none()))
        );
        for text in ["kubernetes:vllm:8000", "kubernetes:prod/vllm:http,key-file=/k"] {
            assert!(matches!(read(text), Ok(EngineSource::Kubernetes(..))), "{text}");
        }
        for text in [
            "",
            "file:",
            "dns:vllm",
            "dns::8000",
            "dns:vllm:0",
            "srv:x:1",
            "kubernetes:vllm",
            "kubernetes:/vllm:8000",
            "kubernetes:prod/:8000",
            "kubernetes:a/b/c:8000",
            "kubernetes:vllm:0",
            "kubernetes:vllm:80000",
        ] {
            read(text).expect_err(text);
        }
        let error = read("dns:vllm:8000,kye-file=/k").expect_err("no such key");
        assert!(error.contains("there is no \"kye-file\""), "{error}");
    }

    #[tokio::test]
    async fn engines_of_a_name_have_the_facts_that_are_stated_with_it() {
        let facts = "key-file=/k,block-size=16,events=tcp://*:5600";
        for (at, address) in [("127.0.0.1:8000", "127.0.0.1:8000"), ("::1:8000", "[::1]:8000")] {
            let source: EngineSource = format!("dns:{at},{facts}").parse().expect("a source");
            let listed = EngineList::new(source).read().await.expect("an address");
            let expected = format!("{address},{facts}").parse().expect("an engine");
            assert_eq!(listed.specs, [expected]);
        }
    }

    /// A name server that knows the SRV records of one name: answers each question, without end.
    async fn answer_questions(socket: UdpSocket, known: Name, services: Vec<SRV>) {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let question = Message::from_vec(&buffer[..length]).expect("a DNS message");
            let mut answer = Message::response(question.metadata.id, OpCode::Query);
            answer.metadata.recursion_available = true;
            answer.queries.clone_from(&question.queries);
            let is_known = question.queries.iter().any(|at| *at.name() == known);
            if !is_known {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
            for service in services.iter().filter(|_| is_known) {
                let data = RData::SRV(service.clone());
                answer.add_answer(Record::from_rdata(known.clone(), 5, data));
            }
            let answer = answer.to_vec().expect("an answer");
            socket.send_to(&answer, from).await.expect("loopback");
        }
    }

    #[tokio::test]
    async fn srv_records_are_hosts_and_ports() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let service = |port, target| SRV::new(0, 100, port, name(target));
        let listed = [
            service(8001, "vllm-1.vllm.prod.svc.cluster.local."),
            service(8000, "vllm-0.vllm.prod.svc.cluster.local."),
            service(8000, "vllm-0.vllm.prod.svc.cluster.local."),
            // These say that a service is not there.
            service(0, "."),
            service(8000, "."),
        ];
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let at = socket.local_addr().expect("an address");
        let known = "_http._tcp.vllm.prod.svc.cluster.local.";
        let serving = answer_questions(socket, name(known), listed.to_vec());
        let mut connection = ConnectionConfig::udp();
        connection.port = at.port();
        let server = NameServerConfig::new(at.ip(), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let runtime = TokioRuntimeProvider::default();
        let resolver = TokioResolver::builder_with_config(config, runtime).build();
        let resolver = resolver.expect("a resolver");
        let asking = async {
            let (_, stated) = Stated::split("name,key-file=/k").expect("facts");
            let unknown = services(&resolver, "_http._tcp.other.", &stated).await;
            assert!(unknown.expect_err("no such name").contains("_http._tcp.other."));
            services(&resolver, known, &stated).await.expect("records")
        };
        let specs = tokio::select! {
            () = serving => panic!("the name server ended"),
            specs = asking => specs,
        };
        let names: Vec<_> = specs.iter().map(EngineSpec::name).collect();
        let expected =
            ["vllm-0.vllm.prod.svc.cluster.local:8000", "vllm-1.vllm.prod.svc.cluster.local:8001"];
        assert_eq!(names, expected);
        assert!(specs.iter().all(|spec| spec.key_file == Some("/k".into())), "{specs:?}");
    }

    #[test]
    fn a_line_is_an_engine() {
        let specs = parse_lines("# fleet\n\n a:1\nb:2,block-size=16\n").expect("engines");
        assert_eq!(specs.iter().map(EngineSpec::name).collect::<Vec<_>>(), ["a:1", "b:2"]);
        assert_eq!(parse_lines("a:1\nb").expect_err("no port").split(':').next(), Some("line 2"));
        assert_eq!(parse_lines("a:1\na:1"), Err("a:1 is listed twice".to_owned()));
        parse_lines("a:1/x,key-file=/k\na:1/y").expect_err("one address with two keys");
    }
}
