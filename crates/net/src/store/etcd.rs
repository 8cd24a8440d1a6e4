//! A job's coordinator and its record in etcd, so that any machine can take over: whoever first writes its address under
//! the job's name, on a lease that it keeps renewing, has the seat; what it records is written only as long as the seat is
//! its own. Requests are etcd's JSON over HTTP, one at a time and bounded in time. This file knows nothing of workers.

use super::{Record, Store, StoreError, open, seal};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// What a request may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A seat is free again so many seconds after its coordinator was last heard of.
const LEASE_SECONDS: u64 = 5;

/// How often it says that it lives.
const RENEWAL: Duration = Duration::from_millis(1500);

/// What is in front of every key of ours.
const PREFIX: &str = "paceline/";

/// The longest name of a job.
const NAME_BYTES: usize = 128;

/// The longest answer that is read: a record and what etcd says about it.
const ANSWER_BYTES: u64 = 1 << 26;

/// One job's place in etcd, as in `etcd://10.0.0.1:2379,10.0.0.2:2379/my-job`.
#[derive(Clone, Debug)]
pub struct Etcd {
    endpoints: Arc<[String]>,
    job: Arc<str>,
    agent: ureq::Agent,
}

impl Etcd {
    /// The scheme of such addresses.
    pub const SCHEME: &str = "etcd://";

    /// Read such an address; what is wrong with it otherwise.
    pub fn parse(address: &str) -> Result<Etcd, String> {
        let wrong = || format!("`{address}` is not of the form etcd://HOST:PORT[,HOST:PORT…]/JOB");
        let rest = address.strip_prefix(Etcd::SCHEME).ok_or_else(wrong)?;
        let (hosts, job) = rest.split_once('/').ok_or_else(wrong)?;
        let endpoints: Arc<[String]> = hosts.split(',').map(str::to_string).collect();
        let usable = |host: &String| {
            let port = host.rsplit_once(':').and_then(|(name, port)| {
                (!name.is_empty()).then(|| port.parse::<u16>().ok()).flatten()
            });
            port.is_some() && !host.contains(|c: char| c.is_whitespace() || c == '@' || c == '#')
        };
        if !endpoints.iter().all(usable) || job.is_empty() || job.len() > NAME_BYTES {
            return Err(wrong());
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(true)
            .max_redirects(0)
            .proxy(None)
            .build();
        Ok(Etcd { endpoints, job: job.into(), agent: config.into() })
    }

    /// Where etcd listens.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Where the job's coordinator listens, if it has one.
    pub fn locate(&self) -> Result<Option<String>, StoreError> {
        self.get("coordinator")
    }

    /// Take the job's seat for a coordinator at this address; none while another has it.
    pub fn claim(&self, address: SocketAddr) -> Result<Option<Seat>, StoreError> {
        let lease = self.ask("lease/grant", &json!({ "TTL": LEASE_SECONDS.to_string() }))?;
        let lease = self.text(&lease["ID"])?;
        let key = self.key("coordinator");
        let request = json!({
            "compare": [{ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }],
            "success": [{ "requestPut": { "key": key, "value": encode(&address.to_string()), "lease": lease } }],
        });
        let answer = self.ask("kv/txn", &request)?;
        if answer["succeeded"] != true {
            // A lease that nobody renews ends by itself.
            let _ = self.ask("lease/revoke", &json!({ "ID": lease }));
            return Ok(None);
        }
        let revision = self.text(&answer["header"]["revision"])?;
        Ok(Some(Seat::hold(self.clone(), lease, revision)?))
    }

    fn get(&self, name: &str) -> Result<Option<String>, StoreError> {
        let answer = self.ask("kv/range", &json!({ "key": self.key(name) }))?;
        let Some(value) = answer["kvs"].get(0).map(|entry| &entry["value"]) else {
            return Ok(None);
        };
        let damaged = || StoreError::Damaged {
            place: format!("{}/{name}", self.place()),
            problem: "it is no text".to_string(),
        };
        // An empty value is left out of the answer.
        let bytes = BASE64_STANDARD.decode(value.as_str().unwrap_or_default());
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        text.map(Some).ok_or_else(damaged)
    }

    fn key(&self, name: &str) -> String {
        encode(&format!("{PREFIX}{}/{name}", self.job))
    }

    fn place(&self) -> String {
        format!("{}{}/{}", Etcd::SCHEME, self.endpoints.join(","), self.job)
    }

    fn text(&self, value: &Value) -> Result<String, StoreError> {
        let text = value.as_str().map(str::to_string);
        text.ok_or_else(|| self.unusable("it answered what etcd does not".to_string()))
    }

    fn unusable(&self, problem: String) -> StoreError {
        StoreError::Unusable { place: self.place(), problem }
    }

    /// Ask the first that answers.
    fn ask(&self, what: &str, request: &Value) -> Result<Value, StoreError> {
        let mut problem = String::new();
        for endpoint in self.endpoints.iter() {
            let asked = self.ask_one(&format!("http://{endpoint}/v3/{what}"), request);
            match asked {
                Ok(answer) => return Ok(answer),
                Err(error) => problem = format!("{endpoint}: {error}"),
            }
        }
        Err(self.unusable(problem))
    }

    fn ask_one(&self, url: &str, request: &Value) -> Result<Value, String> {
        let answer = self.agent.post(url).send(&request.to_string());
        let mut answer = answer.map_err(|error| error.to_string())?;
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES).read_to_string();
        let text = text.map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| format!("no JSON: {error}"))
    }
}

fn encode(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// The job's seat, held by renewing its lease. Dropping it gives it back.
#[derive(Debug)]
pub struct Seat {
    etcd: Etcd,
    lease: String,
    /// When it was taken, as etcd counts: another's would be another number.
    revision: String,
    lost: Arc<AtomicBool>,
    renewal: Option<(SyncSender<()>, JoinHandle<()>)>,
}

impl Seat {
    fn hold(etcd: Etcd, lease: String, revision: String) -> Result<Seat, StoreError> {
        let lost = Arc::<AtomicBool>::default();
        let (stop, stopped) = sync_channel(0);
        let renewing = (etcd.clone(), lease.clone(), lost.clone());
        let renew = move || {
            let (etcd, lease, lost) = renewing;
            let mut renewed = Instant::now();
            // Ends when the seat is given up, or after a lease without an answer.
            while stopped.recv_timeout(RENEWAL) == Err(RecvTimeoutError::Timeout) {
                let asked = Instant::now();
                match etcd.ask("lease/keepalive", &json!({ "ID": lease })) {
                    Ok(answer) if answer["result"]["TTL"].is_string() => renewed = asked,
                    // A lease that is over has no time left.
                    Ok(_) => return lost.store(true, Ordering::Release),
                    Err(_) if renewed.elapsed().as_secs() < LEASE_SECONDS => {}
                    Err(_) => return lost.store(true, Ordering::Release),
                }
            }
        };
        let thread = thread::Builder::new().name("paceline-lease".to_string()).spawn(renew);
        let thread = thread.map_err(|error| etcd.unusable(error.to_string()))?;
        Ok(Seat { etcd, lease, revision, lost, renewal: Some((stop, thread)) })
    }

    /// Write, if the seat is ours.
    fn write(&self, what: &Value) -> Result<(), StoreError> {
        let Seat { etcd, revision, .. } = self;
        let key = etcd.key("coordinator");
        let request = json!({
            "compare": [{ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": revision }],
            "success": [what],
        });
        match etcd.ask("kv/txn", &request)?["succeeded"] == true {
            true => Ok(()),
            false => Err(StoreError::Taken { place: etcd.place() }),
        }
    }

    /// Whether the seat is no longer known to be ours.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.renewal.take() {
            drop(stop);
            // If it panicked, that has been printed.
            let _ = thread.join();
        }
        // If etcd cannot be reached, the lease ends by itself.
        let _ = self.etcd.ask("lease/revoke", &json!({ "ID": self.lease }));
    }
}

/// Keeps the record of a job whose seat is held.
#[derive(Debug)]
pub struct EtcdStore {
    seat: Seat,
}

impl EtcdStore {
    /// For whoever has the seat.
    pub fn new(seat: Seat) -> EtcdStore {
        EtcdStore { seat }
    }
}

impl Store for EtcdStore {
    fn load(&mut self) -> Result<Option<Record>, StoreError> {
        let etcd = &self.seat.etcd;
        let Some(text) = etcd.get("record")? else { return Ok(None) };
        let place = format!("{}/record", etcd.place());
        open(&text).map(Some).map_err(|problem| StoreError::Damaged { place, problem })
    }

    fn is_lent(&self) -> bool {
        true
    }

    fn is_deposed(&self) -> bool {
        self.seat.is_lost()
    }

    fn forget(&mut self) -> Result<(), StoreError> {
        let key = self.seat.etcd.key("record");
        self.seat.write(&json!({ "requestDeleteRange": { "key": key } }))
    }

    fn save(&mut self, record: &Record) -> Result<(), StoreError> {
        let etcd = &self.seat.etcd;
        let text = seal(record).map_err(|error| etcd.unusable(error.to_string()))?;
        let (key, value) = (etcd.key("record"), encode(&text));
        self.seat.write(&json!({ "requestPut": { "key": key, "value": value } }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_hosts_and_a_job() {
        let etcd = Etcd::parse("etcd://10.0.0.1:2379,other:1/my-job").unwrap();
        assert_eq!(etcd.endpoints[..], ["10.0.0.1:2379", "other:1"]);
        assert_eq!(etcd.place(), "etcd://10.0.0.1:2379,other:1/my-job");
        for wrong in [
            "etcd://",
            "etcd://host:1",
            "etcd://host/job",
            "etcd://host:1/",
            "http://a:1/b",
            "etcd://a:1,/b",
            "etcd://a b:1/c",
        ] {
            let problem = Etcd::parse(wrong).unwrap_err();
            assert!(problem.contains("etcd://HOST:PORT"), "{problem}");
        }
    }
}
