//! Permissions in all combinations, including those that a test over loopback cannot create.

use super::fixture::TempFiles;
use super::*;
use hyper::header::HeaderValue;

const SECRET: &str = "correct-horse-battery-staple";

/// Requires a token named "ci" that may infer and change models until second 1000.
fn guarded(config: AccessConfig) -> Access {
    let folder = TempFiles::new();
    let text = format!(
        "[[token]]\nname = \"ci\"\ntoken = \"{SECRET}\"\nscopes = [\"infer\", \"admin\"]\nexpires = 1970-01-01T00:16:40Z"
    );
    let tokens = Some(TokenSource::File(folder.write("tokens.toml", text)));
    Access::open(AccessConfig { tokens, ..config }).unwrap()
}

fn open(config: AccessConfig) -> Access {
    Access::open(config).unwrap()
}

fn connection(bind: &str, peer: &str) -> ConnectionInfo {
    ConnectionInfo { bind: bind.parse().unwrap(), peer: peer.parse().unwrap(), certificate: None }
}

fn decide(
    access: &Access,
    need: Permission,
    bind: &str,
    headers: &[(&'static str, &str)],
) -> Result<Caller, (ProblemKind, String)> {
    let mut map = HeaderMap::new();
    map.insert("host", HeaderValue::from_static("localhost:8000"));
    for (name, value) in headers {
        map.insert(*name, value.parse().unwrap());
    }
    let connection = connection(bind, "10.0.0.9:40000");
    let decided = access.authorize_at(need, &Uri::from_static("/"), &map, Some(&connection), 999);
    decided.map_err(|problem| (problem.kind, problem.message))
}

const LOOPBACK: [&str; 3] = ["127.0.0.1:8000", "[::1]:8000", "[::ffff:127.0.0.1]:8000"];
const OUTSIDE: [&str; 3] = ["0.0.0.0:8000", "[::]:8000", "10.0.0.1:8000"];

#[test]
fn models_are_changed_from_this_machine_only_unless_that_is_opened() {
    let with = |admin| open(AccessConfig { admin, ..AccessConfig::default() });
    let admin = |access: &Access, bind: &str| decide(access, Permission::Admin, bind, &[]);
    for bind in LOOPBACK {
        assert!(admin(&with(Admin::Auto), bind).is_ok() && admin(&with(Admin::On), bind).is_ok(), "{bind}");
        assert!(
            matches!(admin(&with(Admin::Off), bind), Err((ProblemKind::Forbidden, cause)) if cause.contains("--admin off"))
        );
    }
    for bind in OUTSIDE {
        assert!(admin(&with(Admin::On), bind).is_ok(), "{bind}");
        for closed in [Admin::Auto, Admin::Off] {
            assert!(matches!(admin(&with(closed), bind), Err((ProblemKind::Forbidden, _))), "{bind} {closed:?}");
        }
        for need in [Permission::Health, Permission::Describe, Permission::Infer, Permission::Metrics] {
            assert!(decide(&with(Admin::Auto), need, bind, &[]).is_ok(), "{bind} {need:?}");
        }
    }
    let of_nowhere =
        with(Admin::On).authorize_at(Permission::Admin, &Uri::from_static("/"), &HeaderMap::new(), None, 0);
    assert!(of_nowhere.is_err());
}

#[test]
fn a_token_does_not_enable_disabled_calls() {
    let shown = format!("Bearer {SECRET}");
    let token = [("authorization", shown.as_str())];
    let closed = guarded(AccessConfig::default());
    assert!(matches!(decide(&closed, Permission::Admin, OUTSIDE[0], &token), Err((ProblemKind::Forbidden, _))));
    let opened = guarded(AccessConfig { admin: Admin::On, ..AccessConfig::default() });
    assert!(decide(&opened, Permission::Admin, OUTSIDE[0], &token).is_ok());
    assert!(matches!(decide(&opened, Permission::Admin, OUTSIDE[0], &[]), Err((ProblemKind::Unauthenticated, _))));
    let foreign = [("authorization", shown.as_str()), ("origin", "http://evil.example")];
    assert!(matches!(decide(&opened, Permission::Admin, OUTSIDE[0], &foreign), Err((ProblemKind::Forbidden, _))));
}

#[test]
fn tokens_come_in_two_headers_and_expire_to_the_second() {
    let access = guarded(AccessConfig::default());
    let infer = |headers: &[(&'static str, &str)]| decide(&access, Permission::Infer, LOOPBACK[0], headers);
    for scheme in ["Bearer ", "bearer ", "BEARER   "] {
        assert!(infer(&[("authorization", &format!("{scheme}{SECRET}"))]).is_ok(), "{scheme}");
    }
    assert!(infer(&[("x-api-key", SECRET)]).is_ok());
    assert!(infer(&[("x-api-key", SECRET), ("authorization", "Basic eDp5")]).is_ok(), "meant for a proxy");
    let wrong = ["", SECRET, "Bearer", "Bearer ", "Bearerx", "Bearer x", "Basic x"];
    for shown in wrong {
        let refused = infer(&[("authorization", shown)]);
        assert!(
            matches!(&refused, Err((ProblemKind::Unauthenticated, cause)) if !cause.contains(SECRET)),
            "{shown}: {refused:?}"
        );
    }
    assert!(infer(&[("x-api-key", SECRET), ("authorization", "Bearer x")]).is_err(), "what is shown first counts");
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", HeaderValue::from_static(SECRET));
    let at = |now_s| {
        access.authorize_at(Permission::Infer, &Uri::from_static("/"), &headers, None, now_s).map_err(|p| p.message)
    };
    assert!(at(999).is_ok() && at(1000).unwrap_err().contains("has expired"));
}

#[test]
fn health_is_open_unless_it_is_guarded() {
    let open = guarded(AccessConfig::default());
    let health =
        |access: &Access, headers: &[(&'static str, &str)]| decide(access, Permission::Health, OUTSIDE[0], headers);
    assert_eq!(health(&open, &[]), Ok(Caller::default()));
    assert!(!health(&open, &[("x-api-key", "wrong")]).unwrap().known);
    assert!(health(&open, &[("x-api-key", SECRET)]).unwrap().known);
    let closed = guarded(AccessConfig { guard_health: true, ..AccessConfig::default() });
    assert!(matches!(health(&closed, &[]), Err((ProblemKind::Unauthenticated, _))));
    assert!(health(&closed, &[("x-api-key", SECRET)]).is_ok());
}

#[test]
fn clients_are_identified_by_values_that_they_cannot_choose() {
    let client = |access: &Access, peer: &str, certificate: Option<[u8; 32]>, headers: &[(&'static str, &str)]| {
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| drop(map.insert(*name, value.parse().unwrap())));
        let connection = ConnectionInfo { certificate, ..connection(LOOPBACK[0], peer) };
        access.authorize_at(Permission::Infer, &Uri::from_static("/"), &map, Some(&connection), 0).unwrap().client
    };
    let trusting = open(AccessConfig::default());
    let (peer, header) = (client(&trusting, "10.0.0.1:1", None, &[]), [("x-client-id", "a")]);
    assert_eq!(client(&trusting, "10.0.0.1:2", None, &[]), peer, "another port of the same machine");
    assert_ne!(client(&trusting, "10.0.0.2:1", None, &[]), peer);
    let named = client(&trusting, "10.0.0.1:1", None, &header);
    assert!(named != peer && named == client(&trusting, "10.0.0.2:1", None, &header));
    for gateway in ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"] {
        assert_eq!(client(&trusting, "10.0.0.3:1", None, &[(gateway, "a")]), named);
        assert_eq!(client(&trusting, "10.0.0.3:1", None, &[(gateway, "b"), ("x-client-id", "a")]), named);
    }
    let certified = client(&trusting, "10.0.0.1:1", Some([1; 32]), &header);
    assert!(certified != named && certified == client(&trusting, "10.0.0.2:1", Some([1; 32]), &[]));
    let guarded = guarded(AccessConfig::default());
    let token = [("x-api-key", SECRET)];
    let both = [("x-api-key", SECRET), ("x-client-id", "a")];
    let by_token = client(&guarded, "10.0.0.1:1", None, &token);
    assert!(by_token != 0 && by_token == client(&guarded, "10.0.0.2:1", Some([1; 32]), &both));
}

#[test]
fn secrets_that_cannot_be_used_stop_the_start() {
    let folder = TempFiles::new();
    let gone = AccessConfig { tokens: Some(TokenSource::File(folder.path().join("gone"))), ..AccessConfig::default() };
    assert!(Access::open(gone).err().unwrap().to_string().contains("gone: cannot be read"));
    let unset = TokenSource::Environment("RIPIENO_NO_SUCH_VARIABLE".to_owned());
    let unset = AccessConfig { tokens: Some(unset), ..AccessConfig::default() };
    assert!(Access::open(unset).err().unwrap().to_string().contains("RIPIENO_NO_SUCH_VARIABLE: is not set"));
}
