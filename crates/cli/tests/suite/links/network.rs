//! Namespaces of the kernel as machines of a test: each has a link to the cluster and one to the
//! clients, and its own processes see no other network.
//!
//! A namespace lives as long as a shell in it, which waits for the end of its input. Only the test
//! holds that open, so nothing is left however the test ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

/// Set for the test's own process in a namespace.
const INSIDE: &str = "RIPIENO_TEST_NETWORK";

/// A hardware address that no machine has: what is sent there is lost without a word.
const NOWHERE: &str = "02:ff:ff:ff:ff:ff";

/// Runs the named test of this program in a network namespace of its own. Returns true in there;
/// outside it returns false once that has ended well, or where there are no namespaces.
pub(crate) fn enter(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    // Without root, a user namespace permits the network namespace.
    let ways: [&[&str]; 2] = [&["--net"], &["--net", "--map-root-user"]];
    let permits = |way: &&[&str]| succeeds(Command::new("unshare").args(*way).args(["sh", "-c", TRIES]));
    let Some(way) = ways.into_iter().find(permits) else {
        println!("skipped: this machine makes no network namespaces with ip, unshare and nsenter");
        return false;
    };
    let own = std::env::current_exe().unwrap();
    let mut again = Command::new("unshare");
    again.args(way).arg(own).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    assert!(again.status().unwrap().success(), "{test} failed in its namespace");
    false
}

/// All that a network needs, tried in a namespace that ends with the shell.
const TRIES: &str =
    "ip link add name one type bridge && ip link add name two type veth peer name three && nsenter --version";

fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

fn run(command: &mut Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Carries out lines of `ip`, each of which must succeed.
fn ip(command: &mut Command, lines: &str) {
    let output = run(command.args(["-batch", "-"]), lines);
    assert!(output.status.success(), "{lines}: {}", String::from_utf8_lossy(&output.stderr));
}

struct Machine {
    number: usize,
    /// The shell that keeps the namespace.
    keeper: Child,
}

/// The machines, and the bridges that connect them.
pub(crate) struct Network {
    machines: BTreeMap<&'static str, Machine>,
}

impl Network {
    /// Connects machines of these names. Call it in a namespace, see [`enter`].
    pub(crate) fn new(names: &[&'static str]) -> Network {
        let bridges = "link add name cluster type bridge\nlink add name clients type bridge\nlink set dev cluster up\n\
                       link set dev clients up\naddr add 10.1.0.254/24 dev clients\nlink set dev lo up\n";
        ip(&mut Command::new("ip"), bridges);
        let start = |(at, &name): (usize, &&'static str)| {
            let mut shell = Command::new("unshare");
            shell.args(["--net", "sh", "-c", "echo; read -r _"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut keeper = shell.spawn().unwrap();
            // Its line comes from the new namespace.
            BufReader::new(keeper.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
            (name, Machine { number: at + 1, keeper })
        };
        let network = Network { machines: names.iter().enumerate().map(start).collect() };
        network.machines.values().for_each(|machine| machine.connect());
        network
    }

    fn machine(&self, name: &str) -> &Machine {
        self.machines.get(name).unwrap_or_else(|| panic!("no machine {name}"))
    }

    /// Returns the address of a machine for the other ones.
    pub(crate) fn inner(&self, name: &str) -> String {
        self.machine(name).inner()
    }

    /// Returns the address of a machine for clients.
    pub(crate) fn outer(&self, name: &str) -> String {
        format!("10.1.0.{}", self.machine(name).number)
    }

    /// Returns the words before a command that is to run on a machine.
    pub(crate) fn on(&self, name: &str) -> Vec<String> {
        self.machine(name).on()
    }

    /// Cuts or restores the machine's link to the cluster. Its clients still reach it.
    pub(crate) fn set_link(&self, name: &str, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(&mut Command::new("ip"), &format!("link set dev c{} {state}\n", self.machine(name).number));
    }

    /// Loses, or delivers again, what one machine sends to another one.
    pub(crate) fn set_way(&self, from: &str, to: &str, open: bool) {
        let (from, to) = (self.machine(from), self.inner(to));
        let line = match open {
            true => format!("neigh del {to} dev cluster\n"),
            false => format!("neigh replace {to} lladdr {NOWHERE} dev cluster nud permanent\n"),
        };
        ip(&mut from.command("ip"), &line);
    }

    /// Makes the machine's link to the cluster lose packets, or ends that. Returns how, `None`
    /// where the kernel cannot.
    pub(crate) fn set_lossy(&self, name: &str, lossy: bool) -> Option<&'static str> {
        let machine = self.machine(name);
        if !lossy {
            run(machine.command("tc").args(["qdisc", "del", "dev", "cluster", "root"]), "");
            return None;
        }
        // Where the kernel has no emulation of networks, a narrow link with a short queue drops
        // what it has no place for.
        let ways = [
            ("2 % of the packets lost, 2 ms later", "netem loss 2% delay 2ms"),
            ("2 Mbit/s with a queue of 4 KB", "tbf rate 2mbit burst 2kb limit 4kb"),
        ];
        let adds = |way: &str| {
            let mut tc = machine.command("tc");
            succeeds(tc.args(["qdisc", "add", "dev", "cluster", "root"]).args(way.split(' ')))
        };
        ways.into_iter().find(|(_, way)| adds(way)).map(|(what, _)| what)
    }
}

impl Machine {
    fn inner(&self) -> String {
        format!("10.0.0.{}", self.number)
    }

    fn on(&self) -> Vec<String> {
        ["nsenter", "--net", "--target", &self.keeper.id().to_string()].map(str::to_owned).to_vec()
    }

    fn command(&self, program: &str) -> Command {
        let words = self.on();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    fn connect(&self) {
        let (number, keeper, inner) = (self.number, self.keeper.id(), self.inner());
        let lines = |port: &str, bridge: &str| {
            format!(
                "link add name {port}{number} type veth peer name {bridge} netns {keeper}\n\
                 link set dev {port}{number} master {bridge}\nlink set dev {port}{number} up\n"
            )
        };
        ip(&mut Command::new("ip"), &(lines("c", "cluster") + &lines("o", "clients")));
        let own = format!(
            "link set dev lo up\naddr add {inner}/24 dev cluster\nlink set dev cluster up\n\
             addr add 10.1.0.{number}/24 dev clients\nlink set dev clients up\n"
        );
        ip(&mut self.command("ip"), &own);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
