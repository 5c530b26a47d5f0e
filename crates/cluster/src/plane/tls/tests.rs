use super::super::Tcp;
use super::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::fs;
use std::path::Path;
use std::thread;

const WAIT: Duration = Duration::from_secs(20);

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes a certificate of `issuer` for `name`; its holder trusts `trusted`.
fn files(
    folder: &Path,
    issuer: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    trusted: &CertifiedIssuer<'static, KeyPair>,
) -> PeerFiles {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, issuer).unwrap();
    let write = |file: &str, text: String| {
        let path = folder.join(file);
        fs::write(&path, text).unwrap();
        path
    };
    fs::create_dir_all(folder).unwrap();
    PeerFiles {
        certificate: write("tls.crt", certificate.pem()),
        key: write("tls.key", key.serialize_pem()),
        authority: write("ca.crt", trusted.pem()),
        name: "ripieno".to_owned(),
    }
}

/// Returns a transport whose files are in this folder.
pub(in crate::plane) fn transport(folder: &Path) -> MutualTls {
    let own = authority();
    MutualTls::open(files(folder, &own, "ripieno", &own)).unwrap()
}

/// Sends a word each way between two transports; returns what the listener read, or why not.
fn exchange(from: &dyn Transport, to: &dyn Transport) -> io::Result<Vec<u8>> {
    let listener = to.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let stream = from.connect(&listener.address().to_string(), WAIT).unwrap();
    let client = Arc::clone(&stream);
    let asked = thread::spawn(move || {
        client.write_all(b"hello")?;
        client.read(&mut [0; 16], WAIT)
    });
    let accepted = listener.accept().unwrap().unwrap();
    let mut word = [0; 16];
    let heard = accepted.read(&mut word, WAIT).and_then(|read| {
        accepted.write_all(b"you, too")?;
        Ok(word[..read].to_vec())
    });
    accepted.close();
    let asked = asked.join().unwrap();
    stream.close();
    let answered = matches!(asked, Ok(8));
    assert_eq!(answered, heard.as_deref().is_ok_and(|heard| !heard.is_empty()), "{asked:?} {heard:?}");
    heard
}

#[test]
fn only_roles_of_one_authority_and_name_speak() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (authority(), authority());
    let open = |files: PeerFiles| MutualTls::open(files).unwrap();
    let role = open(files(&folder.path().join("a"), &own, "ripieno", &own));
    let peer = open(files(&folder.path().join("b"), &own, "ripieno", &own));
    assert_eq!(exchange(&role, &peer).unwrap(), b"hello");
    let named = open(files(&folder.path().join("c"), &own, "web.example.com", &own));
    let foreign = open(files(&folder.path().join("d"), &other, "ripieno", &own));
    for (who, stranger) in [("another name", &named), ("another authority", &foreign)] {
        assert!(exchange(stranger, &peer).is_err(), "{who} may connect");
        assert!(exchange(&role, stranger).is_err(), "{who} is connected to");
    }
    assert!(exchange(&Tcp, &peer).is_err(), "plain TCP may connect");
}

#[test]
fn large_messages_go_both_ways_concurrently() {
    let folder = tempfile::tempdir().unwrap();
    let own = authority();
    let tls = MutualTls::open(files(folder.path(), &own, "ripieno", &own)).unwrap();
    let listener = tls.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let one = tls.connect(&listener.address().to_string(), WAIT).unwrap();
    // The handshake needs both ends.
    let accepting = thread::spawn(move || listener.accept().unwrap().unwrap());
    let other = accepting.join().unwrap();
    let bytes: Arc<[u8]> = (0..5_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let send = |stream: &Arc<dyn ByteStream>| {
        let (stream, bytes) = (Arc::clone(stream), Arc::clone(&bytes));
        thread::spawn(move || stream.write_all(&bytes).unwrap())
    };
    let receive = |stream: &Arc<dyn ByteStream>| {
        let (stream, bytes) = (Arc::clone(stream), Arc::clone(&bytes));
        thread::spawn(move || {
            let (mut got, mut chunk) = (Vec::new(), vec![0; 70_000]);
            while got.len() < bytes.len() {
                let read = stream.read(&mut chunk, WAIT).unwrap();
                assert!(read > 0, "closed after {}", got.len());
                got.extend_from_slice(&chunk[..read]);
            }
            assert!(got[..] == bytes[..]);
        })
    };
    let threads = [send(&one), receive(&one), send(&other), receive(&other)];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn files_that_do_not_serve_are_named_and_changed_ones_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (own, next) = (authority(), authority());
    let good = files(folder.path(), &own, "ripieno", &own);
    let swapped = PeerFiles { key: good.certificate.clone(), ..good.clone() };
    assert!(MutualTls::open(swapped).err().unwrap().contains("tls.crt: holds no private key"));
    let missing = PeerFiles { authority: folder.path().join("no.crt"), ..good.clone() };
    assert!(MutualTls::open(missing).err().unwrap().contains("no.crt: "));
    let tls = MutualTls::open(good.clone()).unwrap();
    let (served, before) = (|| good.current(&tls.loaded).server, good.current(&tls.loaded).server);
    files(folder.path(), &next, "ripieno", &next);
    assert!(Arc::ptr_eq(&before, &served()), "not looked at within the interval");
    tls.loaded.lock().checked = Instant::now().checked_sub(RELOAD_INTERVAL).unwrap();
    assert!(!Arc::ptr_eq(&before, &served()));
    fs::write(&good.key, "").unwrap();
    let kept = served();
    tls.loaded.lock().checked = Instant::now().checked_sub(RELOAD_INTERVAL).unwrap();
    assert!(Arc::ptr_eq(&kept, &served()), "half a change keeps the last good files");
}
