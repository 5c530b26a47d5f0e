"""Eight faults of a server or a cluster, and the seconds until the page, an alert and `ripieno why` name each.

    python tests/python/measure_drill.py [--binary FILE] [--only WORD] [--pauses] [--within S]

Real processes on loopback are broken while clients send. The page is asked through `/v2/health/status`, which returns its
lines; alerts are those of deploy/, evaluated each second by Prometheus where it is installed, and counted from the first
true evaluation (`for` comes on top). Exit code 1 if any fault is named later than `--within` seconds, or never.

`--pauses` stops each role for 50 to 500 ms instead, and counts elections and requests without an answer.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from measure_release import Load, Process, call, free_ports, until, write_model
from serving import BINARY, ROOT

HERE = "127.0.0.1:0"
LIMIT_S = 60
CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")


class World:
    """Processes of one drill, in a folder of their own; all are killed at its end."""

    def __init__(self, binary):
        self.binary, self.folder = binary, pathlib.Path(tempfile.mkdtemp(prefix="ripieno-drill-"))
        self.models = self.folder / "models"
        self.processes, self.targets, self.undo = [], [], []

    def start(self, role, *flags):
        one = Process(self.binary, self.folder, role, *flags)
        self.processes.append(one.process)
        if one.said.get("metrics"):
            self.targets.append((role, one.said["metrics"]))
        return one

    def serve(self, models, *flags):
        """One server on an emulated device, with these models: names and milliseconds of a lone run."""
        for name, lone_ms in models:
            add_model(self.models, name, lone_ms)
        ports = ["--http", HERE, "--grpc", HERE, "--metrics", HERE]
        return self.start("serve", self.models, "--device", "emulated", *ports, *flags)

    def cluster(self, schedulers=2, backends=2, slo_ms=250):
        write_model(self.models, "1", slo_ms)
        ports = free_ports(schedulers)
        every = ",".join(f"127.0.0.1:{port}" for port in ports)
        more = ["--epoch", f"file:{self.folder / 'epoch'}", "--schedulers", every] if schedulers > 1 else []
        leaders = [self.start("scheduler", "--listen", f"127.0.0.1:{port}", "--metrics", HERE, *more) for port in ports]
        backend = ("backend", self.models, "--scheduler", every, "--device", "emulated", "--metrics", HERE)
        devices = [self.start(*backend) for _ in range(backends)]
        ports = ["--http", HERE, "--grpc", HERE, "--metrics", HERE, "--data", HERE]
        front = self.start("frontend", "--scheduler", every, *ports)
        until("the cluster is ready", lambda: call(front.said["http"], "GET", "/v2/health/ready")[0] == 200)
        return leaders, devices, front

    def bench(self, server, model, rate):
        url = f"http://{server.said['http']}"
        command = [self.binary, "bench", url, "--model", model, "--rate", str(rate), "--duration", "120"]
        self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def load(self, front, rate=50):
        load = Load([front.said["http"]], rate)
        self.undo.append(load.end)
        return load

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for action in reversed(self.undo):
            action()
        shutil.rmtree(self.folder, ignore_errors=True)


def add_model(repository, name, lone_ms, version="1", more=""):
    folder = repository / name
    (folder / version).mkdir(parents=True, exist_ok=True)
    tensor = '[[{}]]\nname = "x"\ndatatype = "FP32"\nshape = [-1, 2]\n'
    profile = f"alpha_ms = {lone_ms}\nbeta_ms = 1\nslo_ms = 100\nmax_batch = 8\n{more}"
    (folder / "model.toml").write_text(profile + tensor.format("input") + tensor.format("output"))


class Prometheus:
    """A Prometheus that scrapes a world each second, with the alerts of one file; `None` where it is not installed."""

    def __init__(self, world, rules):
        import yaml

        self.world, self.process = world, None
        if shutil.which("prometheus") is None:
            return
        read = yaml.safe_load((ROOT / "deploy" / rules).read_text())
        (world.folder / "rules.json").write_text(json.dumps({"groups": read.get("spec", read)["groups"]}))
        scraped = [
            {"targets": [address], "labels": {"ripieno_dev_role": role, "namespace": "drill"}} for role, address in world.targets
        ]
        job = {"job_name": "ripieno", "static_configs": scraped}
        every = {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"}
        config = {"global": every, "rule_files": ["rules.json"], "scrape_configs": [job]}
        (world.folder / "prometheus.json").write_text(json.dumps(config))
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        command = ["prometheus", "--config.file", "prometheus.json", "--web.listen-address", self.address]
        command += ["--storage.tsdb.path", "prometheus-data", "--log.level", "error"]
        self.process = subprocess.Popen(command, cwd=world.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        world.processes.append(self.process)
        until("Prometheus answers", lambda: call(self.address, "GET", "/-/ready")[0] == 200)

    def alerts(self):
        """Names of the alerts whose expression is true."""
        if self.process is None:
            return set()
        _, body = call(self.address, "GET", "/api/v1/alerts")
        return {alert["labels"]["alertname"] for alert in json.loads(body)["data"]["alerts"]}


class Watch:
    """Asks the page, the alerts and `why` until each has named a fault, or a minute has passed."""

    def __init__(self, world, prometheus, page, alert, why):
        """`page`: addresses of metrics ports and the names of problems; `alert`: names; `why`: URL and words."""
        self.world, self.prometheus, self.page, self.alert, self.why = world, prometheus, page, alert, why
        self.begun, self.seen, self.words = time.monotonic(), {}, {}

    def run(self):
        asked = {"page": self.ask_page, "alert": self.ask_alerts, "why": self.ask_why}
        if self.prometheus.process is None:
            asked.pop("alert")
        threads = [threading.Thread(target=self.until_named, args=pair) for pair in asked.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self

    def until_named(self, place, ask):
        while time.monotonic() - self.begun < LIMIT_S:
            with contextlib.suppress(OSError):
                if words := ask():
                    self.seen[place], self.words[place] = time.monotonic() - self.begun, words
                    return
            time.sleep(0.25)

    def ask_page(self):
        addresses, names = self.page
        for address in addresses:
            with contextlib.suppress(OSError):
                problems = json.loads(call(address, "GET", "/v2/health/status", timeout=5)[1])["problems"]
                for problem in problems:
                    if problem["name"] in names:
                        return problem["says"]
        return None

    def ask_alerts(self):
        return ", ".join(sorted(self.prometheus.alerts() & set(self.alert)))

    def ask_why(self):
        url, words = self.why
        command = [self.world.binary, "why", "--url", url]
        # What the server says of itself comes first; a starved server's recording is late.
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        ended = threading.Timer(LIMIT_S - (time.monotonic() - self.begun), asked.kill)
        ended.start()
        try:
            return next((line for line in asked.stdout if any(word in line for word in words)), None)
        finally:
            ended.cancel()
            asked.kill()
            asked.wait()
            asked.stdout.close()


def metrics_of(processes):
    return [process.said["metrics"] for process in processes]


def leader(leaders):
    def leads(one):
        return b"ripieno_leading 1" in call(one.said["metrics"], "GET", "/metrics")[1]

    until("a scheduler leads", lambda: any(leads(one) for one in leaders))
    return next(one for one in leaders if leads(one))


CLUSTER_RULES, SERVER_RULES = "kubernetes/components/monitoring/rules.yaml", "prometheus/rules.yaml"


def backends_killed(world):
    leaders, devices, front = world.cluster()
    primary = leader(leaders)
    world.load(front)
    prometheus = settled(world, CLUSTER_RULES)
    for device in devices:
        device.process.kill()
    url = f"http://{primary.said['metrics']}"
    return Watch(world, prometheus, (metrics_of([primary]), ["no_device"]), ["RipienoNoDevice"], (url, ["No device serves"]))


def backend_hangs(world):
    leaders, devices, front = world.cluster()
    primary = leader(leaders)
    world.load(front)
    prometheus = settled(world, CLUSTER_RULES)
    devices[0].process.send_signal(signal.SIGSTOP)
    url = f"http://{primary.said['metrics']}"
    words = ["1 of 2 devices serve", "is lost"]
    return Watch(world, prometheus, (metrics_of([primary]), ["device_lost"]), ["RipienoDeviceGone"], (url, words))


def primary_stopped(world):
    leaders, _, front = world.cluster()
    primary = leader(leaders)
    spare = next(one for one in leaders if one is not primary)
    world.load(front)
    prometheus = settled(world, CLUSTER_RULES)
    primary.process.send_signal(signal.SIGSTOP)
    url = f"http://{spare.said['metrics']}"
    return Watch(world, prometheus, (metrics_of([spare]), ["no_spare"]), ["RipienoNoSpare"], (url, ["No spare scheduler"]))


def only_scheduler_stopped(world):
    leaders, _, front = world.cluster(schedulers=1)
    world.load(front)
    prometheus = settled(world, CLUSTER_RULES)
    leaders[0].process.send_signal(signal.SIGSTOP)
    page = (metrics_of([front]), ["no_scheduler"])
    return Watch(world, prometheus, page, ["RipienoNoPrimary"], (f"http://{front.said['http']}", ["no scheduler"]))


def throttled_by_signals(world):
    """A process that stands still for 300 ms of each second, as a container at its CPU limit does."""
    server = world.serve([("m", 1)])
    world.bench(server, "m", 50)
    prometheus = settled(world, SERVER_RULES)
    ended = threading.Event()

    def bursts():
        while not ended.wait(0.7):
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            server.process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=bursts)
    thread.start()
    world.undo.append(lambda: (ended.set(), thread.join()))
    return starved(world, prometheus, server)


def throttled_by_control_group(world):
    """The same by a quota of a seventh of a processor, which the load exceeds."""
    first, second = CONTROL_GROUPS / "cpu" / "ripieno-drill", CONTROL_GROUPS / "ripieno-drill"
    group = first if (CONTROL_GROUPS / "cpu").is_dir() else second
    group.mkdir()
    world.undo.append(group.rmdir)
    quota = [("cpu.cfs_quota_us", "15000")] if group == first else [("cpu.max", "15000 100000")]
    server = world.serve([("m", 1)])
    world.bench(server, "m", 300)
    prometheus = settled(world, SERVER_RULES)
    for file, value in [*quota, ("cgroup.procs", str(server.process.pid))]:
        (group / file).write_text(value)
    return starved(world, prometheus, server)


def starved(world, prometheus, server):
    page = (metrics_of([server]), ["starved"])
    return Watch(world, prometheus, page, ["RipienoStarved"], (f"http://{server.said['http']}", ["got no processor"]))


def overload_of_one(world):
    """A model is offered three times what the device can do of it, beside one that is modest."""
    server = world.serve([("heavy", 5), ("modest", 1)])
    world.bench(server, "modest", 20)
    prometheus = settled(world, SERVER_RULES)
    world.bench(server, "heavy", 600)
    return overloaded(world, prometheus, server)


def overload_of_two(world):
    server = world.serve([("heavy", 5), ("second", 5)])
    world.bench(server, "second", 20)
    prometheus = settled(world, SERVER_RULES)
    world.bench(server, "heavy", 400)
    world.bench(server, "second", 400)
    return overloaded(world, prometheus, server)


def overloaded(world, prometheus, server):
    page = (metrics_of([server]), ["overload"])
    return Watch(world, prometheus, page, ["RipienoLate"], (f"http://{server.said['http']}", ["more load than the devices can do"]))


def disk_full_at_load(world):
    """Half of a new version lies on the volume, since it is full; so is the folder for measured profiles."""
    world.models.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", world.models], capture_output=True)
    if mounted.returncode == 0:
        world.undo.append(lambda: subprocess.run(["umount", world.models], check=True))
    (world.models / "real" / "1").mkdir(parents=True)
    whole = ROOT / "crates/executor/tests/models/double.onnx"
    shutil.copy(whole, world.models / "real/1/model.onnx")
    (world.models / "real/model.toml").write_text("slo_ms = 100\n")
    ports = ["--http", HERE, "--grpc", HERE, "--metrics", HERE]
    server = world.start("serve", world.models, "--engine", "cpu", *ports)
    prometheus = settled(world, SERVER_RULES)
    (world.models / "real/2").mkdir()
    if mounted.returncode == 0:
        with contextlib.suppress(OSError), open(world.models / "filler", "wb") as filler:
            while True:
                filler.write(b"0" * 4096)
                filler.flush()
    # A copy of the file ends where the volume is full.
    target = world.models / "real/2/model.onnx"
    with contextlib.suppress(OSError):
        target.write_bytes(whole.read_bytes() if mounted.returncode == 0 else whole.read_bytes()[:40])
    status, told = call(server.said["http"], "POST", "/v2/repository/models/real/load", b"{}")
    print(f"  a call to load it: {status} {told[:160].decode()}", file=sys.stderr)
    page = (metrics_of([server]), ["load_failed"])
    url = f"http://{server.said['http']}"
    return Watch(world, prometheus, page, ["RipienoLoadFails"], (url, ["serves as it was loaded before"]))


def certificate_expired(world):
    cert, key = world.folder / "cert.pem", world.folder / "key.pem"
    write_certificate(cert, key, 90)
    server = world.serve([("m", 1)], "--tls-cert", cert, "--tls-key", key, "--tls-plain-metrics")
    prometheus = settled(world, SERVER_RULES)
    write_certificate(cert, key, -1)
    os.environ["SSL_CERT_FILE"] = str(cert)
    world.undo.append(lambda: os.environ.pop("SSL_CERT_FILE"))
    page = (metrics_of([server]), ["certificate"])
    url = f"https://localhost:{server.said['http'].rsplit(':', 1)[1]}"
    return Watch(world, prometheus, page, ["RipienoCertificateExpires"], (url, ["expired"]))


def write_certificate(cert, key, days):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pair, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(pair.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=30))
    made = made.not_valid_after(now + datetime.timedelta(days=days))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    signed = made.sign(pair, hashes.SHA256())
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(pair.private_bytes(serialization.Encoding.PEM, *form))
    cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def settled(world, rules):
    """Starts Prometheus, and lets it see that all is well."""
    prometheus = Prometheus(world, rules)
    time.sleep(8)
    if firing := prometheus.alerts():
        print(f"  before the fault: {', '.join(sorted(firing))}", file=sys.stderr)
    return prometheus


FAULTS = {
    "all backends killed": backends_killed,
    "one backend hangs": backend_hangs,
    "primary scheduler stopped, with a spare": primary_stopped,
    "only scheduler stopped": only_scheduler_stopped,
    "throttled: stopped for 30 % of the time": throttled_by_signals,
    "throttled: CPU quota of a control group": throttled_by_control_group,
    "overload of one model": overload_of_one,
    "overload of two models": overload_of_two,
    "disk full at load": disk_full_at_load,
    "certificate expired": certificate_expired,
}


def drill(binary, only, within_s):
    print("| fault | page s | alert s | `why` s |\n|---|---|---|---|", flush=True)
    passed, told = True, []
    for name, fault in FAULTS.items():
        if only and only not in name:
            continue
        world = World(binary)
        try:
            watch = fault(world).run()
        except OSError as error:
            print(f"| {name} | not tried: {error} | | |", flush=True)
            continue
        finally:
            world.end()
        asked = [("page", True), ("alert", watch.prometheus.process is not None), ("why", True)]
        cells = [f"{watch.seen[place]:.1f}" if place in watch.seen else "never" if is_asked else "-" for place, is_asked in asked]
        passed &= all(watch.seen.get(place, LIMIT_S) <= within_s for place, is_asked in asked if is_asked)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        told += [f"{name}: {place}: {words.strip()}" for place, words in watch.words.items()]
    print("\n" + "\n".join(told))
    return passed


def pauses(binary):
    """Stops each role for a while, and counts elections and requests without an answer."""
    world = World(binary)
    try:
        # A request on a backend that stands still is answered once that goes on, if its SLO allows.
        leaders, devices, front = world.cluster(slo_ms=2000)

        def elections():
            pages = [call(one.said["metrics"], "GET", "/metrics")[1].decode() for one in leaders]
            lines = [line for page in pages for line in page.splitlines() if line.startswith("ripieno_elections_total ")]
            return sum(int(line.split()[1]) for line in lines)

        load, passed = world.load(front, 60), True
        time.sleep(2)
        print("| stopped for ms | role | elections | answered | not answered |\n|---|---|---|---|---|")
        for pause_ms in (50, 100, 200, 300, 500):
            for role in ("primary", "spare", "backend", "frontend"):
                primary = leader(leaders)
                spare = next(one for one in leaders if one is not primary)
                chosen = {"primary": primary, "spare": spare, "backend": devices[0], "frontend": front}[role]
                before, begun = dict(load.counts), elections()
                chosen.process.send_signal(signal.SIGSTOP)
                time.sleep(pause_ms / 1000)
                chosen.process.send_signal(signal.SIGCONT)
                time.sleep(2.5)
                grown = {name: count - before.get(name, 0) for name, count in load.counts.items()}
                lost = {name: count for name, count in grown.items() if name not in ("good", "late") and count}
                held = elections() - begun
                passed &= not lost and held <= 1
                answered = grown.get("good", 0) + grown.get("late", 0)
                print(f"| {pause_ms} | {role} | {held} | {answered} | {lost or 0} |", flush=True)
        if load.failures:
            print(load.failures)
        return passed
    finally:
        world.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=BINARY, type=pathlib.Path)
    parser.add_argument("--only", default="", help="faults whose name has this word")
    parser.add_argument("--pauses", action="store_true")
    parser.add_argument("--within", default=15, type=float, help="seconds in which each place must name a fault")
    args = parser.parse_args()
    sys.exit(0 if (pauses(args.binary) if args.pauses else drill(args.binary, args.only, args.within)) else 1)


if __name__ == "__main__":
    main()
