//! `bench`, `why` and `health` against a `serve` with TLS, a client certificate and a token: both
//! binaries as users run them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::Value;

type Issuer = CertifiedIssuer<'static, KeyPair>;

const TOKEN: &str = "the-token-of-this-test";
const MODEL: &str = "slo_ms = 60000\nmax_batch = 4\nlatency_ms = [1, 1, 1, 1]\n
[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [-1, 2]\n
[[output]]\nname = \"y\"\ndatatype = \"FP32\"\nshape = [-1, 2]\n";

fn authority(name: &str) -> Issuer {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server and a folder that end with the test.
struct Served {
    folder: PathBuf,
    process: Child,
    http: String,
    grpc: String,
    metrics: String,
}

impl Served {
    fn start() -> Served {
        let folder = tempfile::tempdir().unwrap().keep();
        std::fs::create_dir_all(folder.join("models/m/1")).unwrap();
        let file = |name: &str| folder.join(name);
        let write = |name: &str, text: &str| std::fs::write(file(name), text).unwrap();
        let (ours, theirs) = (authority("servers"), authority("clients"));
        for (name, issuer) in [("server", &ours), ("client", &theirs)] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            write(&format!("{name}.pem"), &params.signed_by(&key, issuer).unwrap().pem());
            write(&format!("{name}.key"), &key.serialize_pem());
        }
        write("ours.pem", &ours.pem());
        write("theirs.pem", &theirs.pem());
        write("models/m/model.toml", MODEL);
        write(
            "tokens.toml",
            &format!("[[token]]\nname = \"bench\"\ntoken = \"{TOKEN}\"\nscopes = [\"infer\", \"admin\"]\n"),
        );
        write("token", &format!("{TOKEN}\n"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
        command.arg("serve").arg(file("models")).args(["--format", "json", "--device", "emulated:1080ti"]);
        for port in ["--http", "--grpc", "--metrics"] {
            command.args([port, "127.0.0.1:0"]);
        }
        let flags = [
            ("--tls-cert", "server.pem"),
            ("--tls-key", "server.key"),
            ("--tls-client-ca", "theirs.pem"),
            ("--tokens", "tokens.toml"),
        ];
        for (flag, name) in flags {
            command.arg(flag).arg(file(name));
        }
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let port = |name: &str| ready[name].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
        let (http, grpc) = (format!("localhost:{}", port("http")), format!("localhost:{}", port("grpc")));
        let metrics = format!("127.0.0.1:{}", port("metrics"));
        Served { process, http, grpc, metrics, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn run(&self, words: &[&str], files: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
        command.args(words).env_remove("RIPIENO_TOKEN").env_remove("SSL_CERT_FILE");
        for (flag, name) in files {
            command.arg(flag).arg(self.file(name));
        }
        command.output().unwrap()
    }

    fn bench(&self, url: &str, files: &[(&str, &str)], variable: Option<&str>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
        command.args(["bench", url, "--model", "m", "--rate", "50", "--duration", "0.4", "--warmup", "0"]);
        command.args(["--format", "json", "--timeout-ms", "60000"]);
        command.env_remove("RIPIENO_TOKEN").env_remove("SSL_CERT_FILE");
        if let Some(token) = variable {
            command.env("RIPIENO_TOKEN", token);
        }
        for (flag, name) in files {
            command.arg(flag).arg(self.file(name));
        }
        command.output().unwrap()
    }

    /// Returns the requests answered in a run in which none failed.
    fn answered(&self, url: &str, files: &[(&str, &str)], variable: Option<&str>) -> u64 {
        let output = self.bench(url, files, variable);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{url}: {error}");
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(results["errors"], serde_json::json!({}), "{url}: {error}");
        results["answered"].as_u64().unwrap()
    }

    /// Returns the error of a run that must fail; a secret is never part of it.
    fn error(&self, url: &str, files: &[(&str, &str)]) -> String {
        let output = self.bench(url, files, None);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{url}: {error}");
        assert!(!error.contains(TOKEN) && !error.contains("PRIVATE"), "{error}");
        error
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
}

const CA: (&str, &str) = ("--ca", "ours.pem");
const CERT: (&str, &str) = ("--cert", "client.pem");
const KEY: (&str, &str) = ("--key", "client.key");
const TOKEN_FILE: (&str, &str) = ("--token-file", "token");

#[test]
fn why_and_health_reach_a_server_behind_tls() {
    let served = Served::start();
    let url = format!("https://{}", served.http);
    let why = |files| served.run(&["why", "--url", &url, "--format", "json"], files);
    let told = why(&[CA, CERT, KEY, TOKEN_FILE]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&told.stdout).unwrap()["bad"], 0);
    let refused = String::from_utf8(why(&[CA, CERT, KEY]).stderr).unwrap();
    assert!(refused.contains("a token is needed"), "{refused}");
    // On a loopback address the certificate's name is not looked at; clients need one here.
    let health = |files| served.run(&["health", &served.metrics], files);
    let live = health(&[CERT, KEY]);
    assert_eq!(String::from_utf8_lossy(&live.stdout), "live\n", "{}", String::from_utf8_lossy(&live.stderr));
    assert_eq!(health(&[]).status.code(), Some(1));
    assert_eq!(health(&[("--ca", "theirs.pem"), CERT, KEY]).status.code(), Some(1), "another authority");
}

#[test]
fn a_server_behind_tls_and_tokens_is_driven_over_both_protocols() {
    let served = Served::start();
    let (https, grpcs) = (format!("https://{}", served.http), format!("grpcs://{}", served.grpc));
    for url in [&https, &grpcs] {
        assert!(served.answered(url, &[CA, CERT, KEY, TOKEN_FILE], None) > 0);
        assert!(served.answered(url, &[CA, CERT, KEY], Some(TOKEN)) > 0, "the token of the environment");
        let without = served.error(url, &[CA, CERT, KEY]);
        assert!(without.contains("a token is needed"), "{without}");
        served.error(url, &[CA, TOKEN_FILE]);
        let stranger = served.error(url, &[("--ca", "theirs.pem"), CERT, KEY, TOKEN_FILE]);
        assert!(stranger.to_lowercase().contains("certificate"), "{stranger}");
    }
    served.error(&format!("http://{}", served.http), &[TOKEN_FILE]);
    let at_odds = served.error(&format!("http://{}", served.http), &[CA]);
    assert!(at_odds.contains("are for https:// and grpcs://"), "{at_odds}");
    let no_pem = served.error(&https, &[("--ca", "tokens.toml")]);
    assert!(no_pem.contains("tokens.toml") && no_pem.contains("certificate"), "{no_pem}");
    let mixed = served.error(&https, &[CA, CERT, ("--key", "server.key")]);
    assert!(mixed.contains("do not fit each other"), "{mixed}");
}
