//! Access tokens: their names, scopes and expiry.
//!
//! The server keeps only hashes. A presented token is hashed, looked up by the first bytes of the
//! hash, and compared in constant time: the lookup time reveals only bits of a hash that an
//! attacker cannot choose.
//!
//! Errors name the file, the line or the entry, and the key, but never repeat a value, which may be
//! a misplaced secret.

use super::config::TokenSource;
use super::reload::Reloading;
use ripieno_repository::config::nearest;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use toml::value::{Date, Datetime, Offset, Table, Time, Value};

/// Minimum token length; shorter tokens can be guessed.
const MIN_TOKEN_CHARS: usize = 16;
const MAX_NAME_BYTES: usize = 128;
/// Maximum number of tokens, equal to the number of client numbers.
const MAX_TOKENS: usize = 65_535;
const KEYS: [&str; 5] = ["name", "token", "sha256", "scopes", "expires"];

/// Scope of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Infer,
    Admin,
    Metrics,
}

impl Scope {
    const ALL: [(&'static str, Scope); 3] =
        [("infer", Scope::Infer), ("admin", Scope::Admin), ("metrics", Scope::Metrics)];
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scopes(u8);

impl Scopes {
    pub(super) fn of(scopes: &[Scope]) -> Scopes {
        Scopes(scopes.iter().fold(0, |all, scope| all | 1 << *scope as u8))
    }

    /// Returns true if the sets have a scope in common.
    pub(super) fn intersects(self, other: Scopes) -> bool {
        self.0 & other.0 != 0
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            Scope::ALL.iter().filter(|(_, scope)| self.intersects(Scopes::of(&[*scope]))).map(|(name, _)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(" or "))
    }
}

/// A token without its secret.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AccessToken {
    pub(super) name: String,
    pub(super) scopes: Scopes,
    /// Expiry in seconds since 1970.
    pub(super) expires_s: Option<u64>,
}

type Hash = [u8; 32];

/// All tokens, sorted by hash.
pub(super) struct AccessTokens(Vec<(Hash, Arc<AccessToken>)>);

impl AccessTokens {
    pub(super) fn open(source: &TokenSource) -> Result<Reloading<AccessTokens>, String> {
        match source {
            TokenSource::File(file) => {
                let shown = file.display().to_string();
                Reloading::open("tokens", vec![file.clone()], move |contents| {
                    let text = contents.first().and_then(|content| str::from_utf8(content).ok());
                    AccessTokens::parse(&shown, text.ok_or_else(|| format!("{shown}: is not UTF-8 text"))?)
                })
            }
            TokenSource::Environment(variable) => {
                let text = std::env::var(variable).map_err(|_| format!("{variable}: is not set, or is not UTF-8"))?;
                let variable = variable.clone();
                Reloading::open("tokens", Vec::new(), move |_| AccessTokens::parse(&variable, &text))
            }
        }
    }

    /// Parses tokens; errors call the source `place`.
    fn parse(place: &str, text: &str) -> Result<AccessTokens, String> {
        // The parser's own message may quote the line, and with it a secret.
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            format!("{place}:{line}: is not valid TOML")
        })?;
        if let Some(key) = table.keys().find(|key| *key != "token") {
            return Err(format!("{place}: the key {key:?} is not known here; tokens are [[token]] sections"));
        }
        let entries = table.get("token").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if entries.is_empty() || entries.len() > MAX_TOKENS {
            return Err(format!("{place}: holds {} [[token]] sections; 1 to {MAX_TOKENS} can be", entries.len()));
        }
        let entry = |(at, entry): (usize, &Value)| {
            let entry = entry.as_table().ok_or("must be a section [[token]]".to_owned());
            entry.and_then(read).map_err(|cause| format!("{place}: [[token]] number {}: {cause}", at + 1))
        };
        let mut tokens = entries.iter().enumerate().map(entry).collect::<Result<Vec<_>, _>>()?;
        tokens.sort_by_key(|(hash, _)| *hash);
        if let Some([(_, one), (_, other)]) = tokens.array_windows().find(|[(one, _), (other, _)]| one == other) {
            return Err(format!("{place}: {:?} and {:?} have the same token; give each its own", one.name, other.name));
        }
        let mut names = BTreeSet::new();
        if let Some((_, twice)) = tokens.iter().find(|(_, token)| !names.insert(&token.name)) {
            return Err(format!("{place}: two tokens are named {:?}; the name tells clients apart", twice.name));
        }
        Ok(AccessTokens(tokens))
    }

    /// Returns the token with this secret.
    pub(super) fn find(&self, shown: &[u8]) -> Option<Arc<AccessToken>> {
        let shown: Hash = Sha256::digest(shown).into();
        let head = |hash: &Hash| [hash[0], hash[1], hash[2], hash[3]];
        let first = self.0.partition_point(|(hash, _)| head(hash) < head(&shown));
        let alike = self.0[first..].iter().take_while(|(hash, _)| head(hash) == head(&shown));
        alike.filter(|(hash, _)| bool::from(hash.ct_eq(&shown))).map(|(_, token)| token.clone()).next()
    }
}

fn read(entry: &Table) -> Result<(Hash, Arc<AccessToken>), String> {
    if let Some(key) = entry.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let near = nearest(key, &KEYS).map_or_else(String::new, |near| format!("; did you mean {near}?"));
        return Err(format!("the key {key:?} is not known; there are {}{near}", KEYS.join(", ")));
    }
    let text = |key: &str| match entry.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("{key} must be a string")),
    };
    let name = text("name")?.ok_or("name is missing; it says in logs and shares who asks")?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
        return Err(format!("name must have 1 to {MAX_NAME_BYTES} bytes and no control characters"));
    }
    let hash = match (text("token")?, text("sha256")?) {
        (Some(token), None) if token.len() < MIN_TOKEN_CHARS || !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            return Err(format!("token must have at least {MIN_TOKEN_CHARS} characters, all of visible ASCII"));
        }
        (Some(token), None) => Sha256::digest(token).into(),
        (None, Some(hex)) => unhex(hex).ok_or("sha256 must be 64 hexadecimal digits")?,
        _ => return Err("give either token or sha256, which is the hash of a token".to_owned()),
    };
    let expires_s = match entry.get("expires") {
        None => None,
        Some(Value::Datetime(at)) => Some(seconds(at).ok_or("expires needs an offset, as in 2030-01-31T00:00:00Z")?),
        Some(_) => return Err("expires must be a date without quotes, as in 2030-01-31".to_owned()),
    };
    Ok((hash, Arc::new(AccessToken { name: name.to_owned(), scopes: scopes(entry)?, expires_s })))
}

fn scopes(entry: &Table) -> Result<Scopes, String> {
    let known = || Scope::ALL.map(|(name, _)| name).join(", ");
    let listed = entry.get("scopes").and_then(Value::as_array).filter(|scopes| !scopes.is_empty());
    let listed = listed.ok_or_else(|| format!("scopes must be a list of some of {}", known()))?;
    let scope =
        |scope: &Value| Scope::ALL.iter().find(|(name, _)| scope.as_str() == Some(name)).map(|(_, scope)| *scope);
    let scopes: Option<Vec<Scope>> = listed.iter().map(scope).collect();
    scopes.map(|scopes| Scopes::of(&scopes)).ok_or_else(|| format!("scopes holds what is none; there are {}", known()))
}

fn unhex(text: &str) -> Option<Hash> {
    let digits = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect::<Option<Vec<_>>>()?;
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

/// Returns seconds since 1970; a date without time means its start in UTC. `None` without a date,
/// or for a time without an offset.
fn seconds(at: &Datetime) -> Option<u64> {
    let Date { year, month, day } = at.date?;
    let time = at.time.unwrap_or(Time { hour: 0, minute: 0, second: None, nanosecond: None });
    let offset_minutes = match (at.offset, at.time) {
        (Some(Offset::Custom { minutes }), _) => i64::from(minutes),
        (Some(Offset::Z), _) | (None, None) => 0,
        (None, Some(_)) => return None,
    };
    let minutes =
        (days(year.into(), month.into(), day.into()) * 24 + i64::from(time.hour)) * 60 + i64::from(time.minute);
    let seconds = (minutes - offset_minutes) * 60 + i64::from(time.second.unwrap_or(0));
    // Dates before 1970 count as 0.
    Some(u64::try_from(seconds).unwrap_or(0))
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. The year is taken to begin
/// in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "correct-horse-battery-staple";

    fn parse(text: &str) -> Result<AccessTokens, String> {
        AccessTokens::parse("tokens.toml", text)
    }

    fn seconds_of(text: &str) -> Option<u64> {
        seconds(&text.parse().unwrap())
    }

    #[test]
    fn a_token_is_found_by_itself_or_by_its_hash_and_by_nothing_else() {
        let hex: String = Sha256::digest("another-token-of-some-length").iter().map(|b| format!("{b:02X}")).collect();
        let tokens = parse(&format!(
            "[[token]]\nname = \"a\"\ntoken = \"{SECRET}\"\nscopes = [\"infer\", \"metrics\"]\n\
             [[token]]\nname = \"b\"\nsha256 = \"{hex}\"\nscopes = [\"admin\"]\nexpires = 2030-01-31\n"
        ))
        .unwrap();
        let a = tokens.find(SECRET.as_bytes()).unwrap();
        assert_eq!((a.name.as_str(), a.expires_s), ("a", None));
        assert_eq!(a.scopes, Scopes::of(&[Scope::Infer, Scope::Metrics]));
        let b = tokens.find(b"another-token-of-some-length").unwrap();
        assert_eq!((b.name.as_str(), b.expires_s), ("b", Some(1_896_048_000)));
        for wrong in ["", "correct-horse-battery-stapl", "correct-horse-battery-staple ", &hex] {
            assert!(tokens.find(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert!(!format!("{a:?}").contains(SECRET));
    }

    #[test]
    fn hashes_with_a_common_prefix_are_distinguished() {
        let token =
            |name: &str| Arc::new(AccessToken { name: name.into(), scopes: Scopes::default(), expires_s: None });
        let hash: Hash = Sha256::digest(SECRET).into();
        let mut other = hash;
        other[31] ^= 1;
        let mut both = vec![(other, token("other")), (hash, token("right"))];
        both.sort_by_key(|(hash, _)| *hash);
        assert_eq!(AccessTokens(both).find(SECRET.as_bytes()).unwrap().name, "right");
    }

    #[test]
    fn errors_name_the_cause_and_never_contain_a_secret() {
        let entry = |rest: &str| format!("[[token]]\nname = \"a\"\n{rest}");
        let good = format!("token = \"{SECRET}\"\nscopes = [\"infer\"]\n");
        let cases = [
            (String::new(), "holds 0 [[token]]"),
            (format!("token = \"{SECRET}\""), "holds 0 [[token]]"),
            (format!("tokens = \"{SECRET}\""), "the key \"tokens\" is not known here"),
            (format!("[[token]]\nname = \"a\"\ntoken = {SECRET}"), "tokens.toml:3: is not valid TOML"),
            (entry("scopes = [\"infer\"]"), "number 1: give either token or sha256"),
            (entry(&format!("{good}sha256 = \"00\"")), "give either token or sha256"),
            (entry("token = \"short\"\nscopes = [\"infer\"]"), "at least 16 characters"),
            (entry(&format!("sha256 = \"{SECRET}\"\nscopes = [\"infer\"]")), "64 hexadecimal digits"),
            (entry(&format!("token = \"{SECRET}\"")), "scopes must be a list of some of infer, admin, metrics"),
            (entry(&format!("token = \"{SECRET}\"\nscopes = [\"{SECRET}\"]")), "scopes holds what is none"),
            (entry(&format!("{good}expires = \"{SECRET}\"")), "expires must be a date without quotes"),
            (entry(&format!("{good}expires = 2030-01-31T00:00:00")), "expires needs an offset"),
            (entry(&format!("{good}expire = 2030-01-31")), "the key \"expire\" is not known"),
            (good.replace("token", "[[token]]\ntoken"), "name is missing"),
            (format!("[[token]]\nname = \"a\\nb\"\n{good}"), "no control characters"),
            (entry(&good) + &entry(&good).replace("\"a\"", "\"b\""), "have the same token"),
            (entry(&good) + &entry(&good).replace("staple", "stable"), "two tokens are named \"a\""),
        ];
        assert!(parse(&entry(&good)).is_ok());
        for (text, expected) in cases {
            let error = parse(&text).err().unwrap_or_default();
            assert!(error.starts_with("tokens.toml:") && error.contains(expected), "{error:?}, not {expected:?}");
            assert!(!error.contains(SECRET), "{error}");
        }
    }

    #[test]
    fn dates_are_counted_as_the_calendar_has_it() {
        assert_eq!(seconds_of("1970-01-01"), Some(0));
        assert_eq!(seconds_of("2000-02-29T12:30:15Z"), Some(951_827_415));
        assert_eq!(seconds_of("2024-03-01T00:00:00+02:00"), Some(1_709_244_000));
        assert_eq!(seconds_of("2100-03-01"), Some(4_107_542_400));
        assert_eq!(seconds_of("1969-12-31"), Some(0));
        assert_eq!(seconds_of("12:00:00"), None);
    }
}
