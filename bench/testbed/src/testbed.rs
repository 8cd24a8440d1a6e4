//! Building the network and changing it: namespaces, wires, bridges, shapers in the right order. It
//! decides no rates and measures nothing.
//!
//! One more namespace, the *fabric*, holds all switches: a bridge for each rack and, if there are
//! several, a core bridge between them. Each wire is shaped where packets enter it, at both of its ends.

use crate::{
    error::{Error, Result},
    interface::{self, End, Index},
    message::Message,
    namespace::{self, Namespace},
    netlink::Netlink,
    shaping::{self, Queue, Shaper},
    spec::{PREFIX_BITS, Seat, Spec, validate_rate},
    warden::Warden,
};
use paceline_job::{
    Rate,
    script::{LinkChange, Target},
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::Ipv4Addr,
    os::{
        fd::{AsRawFd, RawFd},
        unix::process::CommandExt,
    },
    process::{self, Child, Command},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Environment variable with one path for each host, by which its namespace can be entered.
pub const NAMESPACES_VARIABLE: &str = "TESTBED_NAMESPACES";

/// Indices in the fabric, far enough apart for the most hosts there can be, and above those that the
/// kernel may hand out itself.
const CORE: Index = 900;
const RACK_BASE: Index = 1000;
const UPLINK_BASE: Index = 2000;
const TRUNK_BASE: Index = 3000;
const PORT_BASE: Index = 4000;
/// The one wire of a host, in its own namespace.
const HOST_WIRE: Index = 5000;

/// Sender and receiver windows may grow to this: more than a queue holds, so that the link, not the
/// window, limits a flow.
const WINDOW_BYTES: &str = "4096 131072 16777216";

/// A network that exists. Dropping it ends every process in it and removes it.
#[derive(Debug)]
pub struct Testbed {
    // Dropped first: processes end before the namespaces they are in.
    _warden: Warden,
    spec: Spec,
    shaper: Shaper,
    hosts: Vec<Node>,
    fabric: Node,
    rates: Mutex<BTreeMap<Target, Rate>>,
}

/// A namespace and the socket that configures it.
#[derive(Debug)]
struct Node {
    namespace: Namespace,
    netlink: Mutex<Netlink>,
}

impl Testbed {
    /// Build the network.
    ///
    /// # Errors
    /// What the kernel lacks or refuses; whatever was built by then is gone again.
    pub fn build(spec: &Spec) -> Result<Testbed> {
        spec.validate()?;
        let fabric = Node::create(quiet_addresses)?;
        let hosts: Vec<Node> = (0..spec.all_hosts())
            .map(|_| Node::create(|| prepare_host(spec.congestion.as_deref())))
            .collect::<Result<_>>()?;
        let namespaces = hosts.iter().chain([&fabric]).map(|node| node.namespace.id()).collect();
        let mut testbed = Testbed {
            _warden: Warden::start(namespaces)?,
            spec: spec.clone(),
            shaper: spec.shaper.unwrap_or(Shaper::ALL[0]),
            hosts,
            fabric,
            rates: Mutex::new(BTreeMap::new()),
        };
        testbed.build_racks()?;
        for host in 0..spec.all_hosts() {
            testbed.join_host(host)?;
        }
        let targets = testbed.targets();
        let (first, rest) = targets.split_first().expect("a network has at least one host");
        testbed.shape_first(*first)?;
        for target in rest {
            testbed.shape(*target, spec.rate_of(*target)?, shaping::install)?;
        }
        Ok(testbed)
    }

    /// What was asked for.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The shaper in use.
    pub fn shaper(&self) -> Shaper {
        self.shaper
    }

    /// Every link: the hosts' wires and those of neighbours, then the racks' uplinks.
    pub fn targets(&self) -> Vec<Target> {
        let racks = if self.spec.racks > 1 { self.spec.racks } else { 0 };
        (0..self.spec.all_hosts()).map(Target::Host).chain((0..racks).map(Target::Rack)).collect()
    }

    /// Where a host is reached by the others.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        self.spec.address(host)
    }

    /// What a link carries now.
    ///
    /// # Errors
    /// [`Error::NoSuchTarget`].
    pub fn rate(&self, target: Target) -> Result<Rate> {
        self.spec.expect(target)?;
        match lock(&self.rates).get(&target) {
            Some(rate) => Ok(*rate),
            None => self.spec.rate_of(target),
        }
    }

    /// What the slowest link between two hosts carries.
    ///
    /// # Errors
    /// [`Error::NoSuchTarget`].
    pub fn rate_between(&self, from: usize, to: usize) -> Result<Rate> {
        let mut way = vec![Target::Host(from), Target::Host(to)];
        let seats = [from, to].map(|host| self.spec.seat_of(host));
        if seats[0] != seats[1] {
            way.extend(seats.into_iter().filter_map(|seat| match seat {
                Seat::Rack(rack) => Some(Target::Rack(rack)),
                Seat::Core => None,
            }));
        }
        let rates = way.into_iter().map(|target| self.rate(target));
        let slowest = rates.reduce(|a, b| {
            let (a, b) = (a?, b?);
            Ok(if a <= b { a } else { b })
        });
        slowest.expect("a way has at least the wires of both hosts")
    }

    /// Start a command on a host, with the `TESTBED_…` environment that tells it where it is. The
    /// testbed ends it when it is dropped, and so does the end of this process.
    ///
    /// # Errors
    /// If there is no such host, or the command cannot be started.
    pub fn spawn(&self, host: usize, mut command: Command) -> Result<Child> {
        self.spec.expect(Target::Host(host))?;
        command.envs(self.environment(host));
        let namespace = self.hosts[host].namespace.descriptor();
        // SAFETY: between fork and exec only one system call is made, on a descriptor that `self`
        // keeps open.
        unsafe { command.pre_exec(move || namespace::enter(namespace)) };
        command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy();
            Error::system(format!("start `{program}` on host{host}"), error)
        })
    }

    /// Hold a link to another rate, in both directions.
    ///
    /// # Errors
    /// If there is no such link, or the kernel refuses.
    pub fn set_rate(&self, target: Target, rate: Rate) -> Result<()> {
        self.spec.expect(target)?;
        validate_rate(rate)?;
        self.shape(target, rate, shaping::change)
    }

    /// Do to a link what a script says.
    ///
    /// # Errors
    /// If there is no such link, or the kernel refuses.
    pub fn apply(&self, target: Target, change: LinkChange) -> Result<()> {
        self.spec.expect(target)?;
        // The switch's end goes down, as when a cable is pulled: the host keeps its address and routes.
        let port = match target {
            Target::Host(host) => PORT_BASE + host as Index,
            Target::Rack(rack) => TRUNK_BASE + rack as Index,
        };
        match change {
            LinkChange::Rate(rate) => self.set_rate(target, rate),
            LinkChange::Cut => self.fabric.request(&format!("cut {target}"), interface::down(port)),
            LinkChange::Restore => {
                self.fabric.request(&format!("restore {target}"), interface::up(port))
            }
        }
    }

    /// Run `work` on a thread in a host's namespace.
    pub(crate) fn within<T: Send>(
        &self,
        host: usize,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        self.spec.expect(Target::Host(host))?;
        self.hosts[host].namespace.within(work)
    }

    fn build_racks(&self) -> Result<()> {
        let several = self.spec.racks > 1;
        if several {
            self.fabric.bridge(CORE, "core")?;
        }
        for rack in 0..self.spec.racks as Index {
            self.fabric.bridge(RACK_BASE + rack, &format!("rack{rack}"))?;
            if !several {
                continue;
            }
            let (uplink, trunk) = (format!("uplink{rack}"), format!("trunk{rack}"));
            let near = End { index: UPLINK_BASE + rack, name: &uplink };
            let far = End { index: TRUNK_BASE + rack, name: &trunk };
            let wire = interface::new_wire(&near, RACK_BASE + rack, &far, None);
            self.fabric.request_device("veth", &format!("join rack{rack} to the core"), wire)?;
            let doing = format!("join rack{rack} to the core");
            self.fabric.request(&doing, interface::join_bridge(far.index, CORE))?;
            self.fabric.request(&doing, interface::up(near.index))?;
            self.fabric.request(&doing, interface::up(far.index))?;
        }
        Ok(())
    }

    fn join_host(&self, host: usize) -> Result<()> {
        let doing = format!("join host{host} to its switch");
        let node = &self.hosts[host];
        let port = format!("port{host}");
        let near = End { index: PORT_BASE + host as Index, name: &port };
        let far = End { index: HOST_WIRE, name: "eth0" };
        let switch = match self.spec.seat_of(host) {
            Seat::Rack(rack) => RACK_BASE + rack as Index,
            Seat::Core => CORE,
        };
        let namespace: RawFd = node.namespace.descriptor();
        let wire = interface::new_wire(&near, switch, &far, Some(namespace));
        self.fabric.request_device("veth", &doing, wire)?;
        self.fabric.request(&doing, interface::up(near.index))?;
        node.request(&doing, interface::up(interface::LOOPBACK))?;
        let address = interface::new_address(HOST_WIRE, self.address(host), PREFIX_BITS);
        node.request(&doing, address)?;
        node.request(&doing, interface::up(HOST_WIRE))
    }

    /// Shape one link, and find out by it which shaper the kernel has.
    fn shape_first(&mut self, target: Target) -> Result<()> {
        let wanted = match self.spec.shaper {
            Some(shaper) => vec![shaper],
            None => Shaper::ALL.to_vec(),
        };
        for shaper in wanted {
            self.shaper = shaper;
            match self.shape(target, self.spec.rate_of(target)?, shaping::install) {
                Err(error) if lacks(&error) => {}
                result => return result,
            }
        }
        let (what, modules) = match self.spec.shaper {
            Some(Shaper::Htb) => ("shaper `htb`", "`modprobe sch_htb`, or choose another shaper"),
            Some(Shaper::Tbf) => ("shaper `tbf`", "`modprobe sch_tbf`, or choose another shaper"),
            None => ("shaper, neither `htb` nor `tbf`", "`modprobe sch_htb` or `modprobe sch_tbf`"),
        };
        Err(Error::Missing { what: what.to_string(), remedy: format!("load it with {modules}") })
    }

    /// Send the requests `make` gives for both ends of a link.
    fn shape(
        &self,
        target: Target,
        rate: Rate,
        make: fn(Shaper, Index, Rate, Queue) -> Vec<Message>,
    ) -> Result<()> {
        // Senders see a full queue of their own wire and wait; what meets in a switch's would be dropped. That slows the job's own
        // bursts down, so there is room for them; but then connections never share a link evenly, as they are to with others' traffic.
        let switch = |hosts: usize| match self.spec.neighbours.is_empty() {
            true => Queue::Deep(hosts),
            false => Queue::Shallow,
        };
        let ends = match target {
            Target::Host(host) => [
                (&self.hosts[host], HOST_WIRE, Queue::Deep(1)),
                (&self.fabric, PORT_BASE + host as Index, switch(1)),
            ],
            Target::Rack(rack) => [UPLINK_BASE, TRUNK_BASE]
                .map(|base| (&self.fabric, base + rack as Index, switch(self.spec.hosts))),
        };
        for (node, index, queue) in ends {
            for message in make(self.shaper, index, rate, queue) {
                node.request(&format!("hold {target} to {rate}"), message)?;
            }
        }
        lock(&self.rates).insert(target, rate);
        Ok(())
    }

    fn environment(&self, host: usize) -> Vec<(&'static str, String)> {
        let all = 0..self.spec.hosts;
        let addresses: Vec<_> = all.map(|other| self.address(other).to_string()).collect();
        let namespaces: Vec<_> = self
            .hosts
            .iter()
            .map(|node| format!("/proc/{}/fd/{}", process::id(), node.namespace.descriptor()))
            .collect();
        vec![
            ("TESTBED_HOST", host.to_string()),
            ("TESTBED_HOSTS", self.spec.hosts.to_string()),
            ("TESTBED_RACK", self.spec.rack_of(host).to_string()),
            ("TESTBED_ADDRESS", self.address(host).to_string()),
            ("TESTBED_ADDRESSES", addresses.join(",")),
            (NAMESPACES_VARIABLE, namespaces.join(",")),
        ]
    }
}

/// Move the calling thread to another host of the testbed that the environment describes, as
/// [`Testbed::spawn`] left it in [`NAMESPACES_VARIABLE`].
///
/// # Errors
/// If no testbed is described, or it has no such host.
pub fn enter_host(namespaces: &str, host: usize) -> Result<()> {
    let path =
        namespaces.split(',').nth(host).filter(|path| !path.is_empty()).ok_or_else(|| {
            let known = namespaces.split(',').filter(|path| !path.is_empty()).count();
            Error::NoSuchTarget(format!("no host{host}: this testbed has {known} hosts, from 0"))
        })?;
    let doing = || format!("enter host{host} through {path}; does its testbed still run?");
    let file = File::open(path).map_err(Error::doing(doing()))?;
    namespace::enter(file.as_raw_fd()).map_err(Error::doing(doing()))
}

impl Node {
    fn create(setup: impl FnOnce() -> Result<()> + Send) -> Result<Node> {
        let (namespace, netlink) = Namespace::create(|| {
            setup()?;
            Netlink::open()
        })?;
        Ok(Node { namespace, netlink: Mutex::new(netlink) })
    }

    fn request(&self, doing: &str, message: Message) -> Result<()> {
        lock(&self.netlink).request(doing, message)
    }

    /// As [`Node::request`], for an interface of a kind that the kernel may lack.
    fn request_device(&self, kind: &str, doing: &str, message: Message) -> Result<()> {
        self.request(doing, message).map_err(|error| match error {
            error if lacks(&error) => Error::Missing {
                what: format!("`{kind}` interfaces"),
                remedy: format!("load them with `modprobe {kind}`"),
            },
            error => error,
        })
    }

    fn bridge(&self, index: Index, name: &str) -> Result<()> {
        let doing = format!("make the bridge {name}");
        self.request_device("bridge", &doing, interface::new_bridge(index, name))?;
        self.request(&doing, interface::up(index))
    }
}

/// Whether a refusal says that the kernel does not know the kind of thing asked for.
fn lacks(error: &Error) -> bool {
    matches!(error, Error::Refused { cause, .. }
        if matches!(cause.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP)))
}

/// Set the calling thread's new namespace up as a host.
fn prepare_host(congestion: Option<&str>) -> Result<()> {
    quiet_addresses()?;
    // Larger windows are a help, not a need: some containers do not let them be set.
    let _ = write_setting("ipv4/tcp_wmem", WINDOW_BYTES);
    let _ = write_setting("ipv4/tcp_rmem", WINDOW_BYTES);
    // Results of one flow must not set the start of the next.
    let _ = write_setting("ipv4/tcp_no_metrics_save", "1");
    let Some(wanted) = congestion else { return Ok(()) };
    write_setting("ipv4/tcp_congestion_control", wanted).map_err(|cause| {
        let allowed = fs::read_to_string(setting_path("ipv4/tcp_allowed_congestion_control"));
        Error::Congestion {
            wanted: wanted.to_string(),
            allowed: allowed.unwrap_or_default().trim().to_string(),
            cause,
        }
    })
}

/// No addresses that nobody asked for, and none of their chatter. Kernels without them have no setting.
fn quiet_addresses() -> Result<()> {
    let _ = write_setting("ipv6/conf/all/disable_ipv6", "1");
    let _ = write_setting("ipv6/conf/default/disable_ipv6", "1");
    Ok(())
}

/// The kernel shows each thread the settings of its own namespace here.
fn setting_path(name: &str) -> String {
    format!("/proc/sys/net/{name}")
}

fn write_setting(name: &str, value: &str) -> io::Result<()> {
    fs::write(setting_path(name), value)
}

/// A panic elsewhere leaves a socket or a table of rates that is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
