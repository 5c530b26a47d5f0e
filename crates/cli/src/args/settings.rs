//! Settings of servers from a file, `ripieno.toml`: the flags of `serve` and of the roles of a
//! cluster as keys, for machines whose settings are kept under version control.
//!
//! Keys at the top are for every server that has the flag, keys of a section `[serve]` for that
//! command. The file's settings become words of the command line before it is parsed, unless the
//! command line or a variable sets the same flag: so they are checked as flags are, and a flag that
//! needs another is refused without it.

use crate::args::environment::{CONFIG, SERVERS};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use ripieno_repository::config::nearest;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The file that is read if none is named.
const DEFAULT: &str = "ripieno.toml";

/// A command line with the settings of a file.
pub(crate) struct ServerSettings {
    pub(crate) words: Vec<OsString>,
    /// Number of the words that the file gave; they stand behind the name of the command.
    from_file: usize,
    /// The file, if one was read.
    file: Option<PathBuf>,
    /// Variables that begin as ours do, and are no flags.
    unknown: Vec<String>,
}

impl ServerSettings {
    /// Adds the settings of the file that the command line or a variable names, or else of
    /// `ripieno.toml` in the working directory, if the command is a server.
    pub(crate) fn read(words: Vec<OsString>, command: &Command) -> Result<ServerSettings, String> {
        let asked = words.get(1).and_then(|word| word.to_str());
        let Some(server) = asked.filter(|name| SERVERS.contains(name)).map(str::to_owned) else {
            return Ok(ServerSettings::without_file(words, Vec::new()));
        };
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let unknown = unknown_variables(variables, command)?;
        // A wrong command line is reported when it is parsed.
        let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(&words) else {
            return Ok(ServerSettings::without_file(words, unknown));
        };
        let Some(given) = matches.subcommand_matches(&server) else {
            return Ok(ServerSettings::without_file(words, unknown));
        };
        let file = match given.try_get_one::<PathBuf>(CONFIG).ok().flatten() {
            Some(named) => named.clone(),
            None if Path::new(DEFAULT).is_file() => PathBuf::from(DEFAULT),
            None => return Ok(ServerSettings::without_file(words, unknown)),
        };
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let table: Table = text.parse().map_err(|error| format!("{}: {error}", file.display()))?;
        let own =
            file_words(&table, command, &server, given).map_err(|cause| format!("{}: {cause}", file.display()))?;
        let (mut words, from_file) = (words, own.len());
        words.splice(2..2, own.into_iter().map(OsString::from));
        Ok(ServerSettings { words, from_file, file: Some(file), unknown })
    }

    fn without_file(words: Vec<OsString>, unknown: Vec<String>) -> ServerSettings {
        ServerSettings { words, from_file: 0, file: None, unknown }
    }

    /// Reports an error of the command line and exits; names the file or variable that a wrong
    /// value came from.
    pub(crate) fn exit(&self, error: &clap::Error, command: &Command) -> ! {
        if let Some(source) = self.source(error, command, |name| std::env::var_os(name).is_some()) {
            eprintln!("in {source}:");
        }
        error.exit()
    }

    /// Returns the file or variable that gave the flag of an error; `None` if the command line did.
    fn source(&self, error: &clap::Error, command: &Command, is_set: impl Fn(&str) -> bool) -> Option<String> {
        let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
        let flag = flag.split([' ', '=']).next()?;
        let gives = |word: &OsString| {
            let word = word.to_string_lossy();
            word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let file = 2..2 + self.from_file;
        let (own, rest): (Vec<_>, Vec<_>) = self.words.iter().enumerate().partition(|(at, _)| file.contains(at));
        if rest.into_iter().any(|(_, word)| gives(word)) {
            return None;
        }
        if own.into_iter().any(|(_, word)| gives(word)) {
            return self.file.as_ref().map(|file| file.display().to_string());
        }
        let server = subcommand(command, self.words.get(1)?.to_str()?).ok()?;
        let arg = server.get_arguments().find(|arg| arg.get_long() == flag.strip_prefix("--"))?;
        let variable = arg.get_env()?.to_str()?;
        is_set(variable).then(|| format!("the variable {variable}"))
    }

    pub(crate) fn log(&self) {
        if let Some(file) = &self.file {
            tracing::info!("settings are read from {}", file.display());
        }
        for name in &self.unknown {
            tracing::warn!("the variable {name} is no flag of a server, and is passed over");
        }
    }
}

/// Letters that a misspelt variable has in common with the right one: the prefix and one more.
const SAME: usize = "RIPIENO_".len() + 1;

/// Variables that begin as ours do and are no flags.
const OTHER_VARIABLES: [&str; 4] = ["RIPIENO_LOG", "RIPIENO_TOKEN", "RIPIENO_TOKENS", "RIPIENO_COMMIT"];

/// Returns the variables that begin with `RIPIENO_` and are the flags of no server. One that is a
/// misspelt flag is an error. Variables that Kubernetes makes of services are passed over.
fn unknown_variables(
    variables: impl Iterator<Item = (String, OsString)>,
    command: &Command,
) -> Result<Vec<String>, String> {
    let servers = SERVERS.iter().map(|name| subcommand(command, name)).collect::<Result<Vec<_>, _>>()?;
    let flags = servers.iter().flat_map(|of| of.get_arguments());
    let mut known: Vec<String> = flags.filter_map(|arg| arg.get_env()?.to_str().map(str::to_owned)).collect();
    known.extend(OTHER_VARIABLES.map(str::to_owned));
    let keys: Vec<String> = known.iter().map(|name| name.to_lowercase()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut unknown = Vec::new();
    for (name, value) in variables.filter(|(name, _)| name.starts_with("RIPIENO_")) {
        let of_service = name.contains("_SERVICE_HOST") || name.contains("_SERVICE_PORT") || name.contains("_TCP");
        if known.contains(&name) || of_service || value.to_string_lossy().starts_with("tcp://") {
            continue;
        }
        // Less alike, it may be a variable of something else.
        let is_near =
            |key: &&str| key.len().abs_diff(name.len()) <= 2 && key.get(..SAME) == name.to_lowercase().get(..SAME);
        match nearest(&name, &keys).filter(is_near) {
            Some(near) => {
                return Err(format!(
                    "the variable {name} is no flag of a server; did you mean {}?",
                    near.to_uppercase()
                ));
            }
            None => unknown.push(name),
        }
    }
    Ok(unknown)
}

/// Returns the words for the file's settings that nothing else gives.
fn file_words(table: &Table, command: &Command, server: &str, given: &ArgMatches) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut chosen: Vec<(&Arg, &Value, String)> = Vec::new();
    for (key, value) in table {
        match (value, SERVERS.contains(&key.as_str())) {
            (Value::Table(section), true) => {
                let of = subcommand(command, key)?;
                for (name, value) in section {
                    let place = format!("{key}.{name}");
                    let arg = find(of, name).ok_or_else(|| unknown(&place, name, &[of]))?;
                    if key == server {
                        chosen.retain(|(other, ..)| other.get_id() != arg.get_id());
                        chosen.push((arg, value, place));
                    }
                }
            }
            (_, true) if find(subcommand(command, "backend")?, key).is_some() => {
                return Err(format!("{key} is a section: write the flag --{key} as {key} in [backend] and [frontend]"));
            }
            (_, true) => return Err(format!("{key} is a section: write [{key}]")),
            (_, false) => {
                let all = SERVERS.iter().map(|name| subcommand(command, name)).collect::<Result<Vec<_>, _>>()?;
                if let (Value::Table(_), Some(near)) = (value, nearest(key, &SERVERS)) {
                    return Err(format!("[{key}] is the section of no server; did you mean [{near}]?"));
                }
                if !all.iter().any(|of| find(of, key).is_some()) {
                    return Err(unknown(key, key, &all));
                }
                // A section goes before it, wherever it stands.
                if let Some(arg) = find(subcommand(command, server)?, key)
                    && !chosen.iter().any(|(other, ..)| other.get_id() == arg.get_id())
                {
                    chosen.push((arg, value, key.clone()));
                }
            }
        }
    }
    for (arg, value, place) in chosen {
        let source = given.value_source(arg.get_id().as_str());
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            words.extend(flag_words(arg, value, &place)?);
        }
    }
    Ok(words)
}

fn subcommand<'a>(command: &'a Command, name: &str) -> Result<&'a Command, String> {
    command.find_subcommand(name).ok_or_else(|| format!("there is no command {name}"))
}

/// Returns the name of a flag as a key.
fn key_of(arg: &Arg) -> Option<String> {
    match arg.get_long() {
        Some("help" | "help-all" | "version" | CONFIG) => None,
        Some(long) => Some(long.replace('-', "_")),
        None => (arg.get_id() == "repository").then(|| "repository".to_owned()),
    }
}

fn find<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    let key = key.replace('-', "_");
    command.get_arguments().find(|arg| key_of(arg).is_some_and(|own| own == key))
}

fn unknown(place: &str, key: &str, commands: &[&Command]) -> String {
    let known: Vec<String> = commands.iter().flat_map(|of| of.get_arguments()).filter_map(key_of).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let advice = nearest(key, &known).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("{place} is no flag of a server{advice}")
}

fn flag_words(arg: &Arg, value: &Value, place: &str) -> Result<Vec<String>, String> {
    let values = match value {
        Value::Array(values) => values.iter().map(|value| scalar(value, place)).collect::<Result<Vec<_>, _>>()?,
        value => vec![scalar(value, place)?],
    };
    let Some(long) = arg.get_long() else { return Ok(values) };
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return match values.as_slice() {
            [word] if word == "true" => Ok(vec![format!("--{long}")]),
            [word] if word == "false" => Ok(Vec::new()),
            _ => Err(format!("{place} is true or false")),
        };
    }
    if let (Some(delimiter), true) = (arg.get_value_delimiter(), values.len() > 1) {
        return Ok(vec![format!("--{long}={}", values.join(&delimiter.to_string()))]);
    }
    if values.len() > 1 && !matches!(arg.get_action(), ArgAction::Append) {
        return Err(format!("{place} has one value"));
    }
    Ok(values.into_iter().map(|value| format!("--{long}={value}")).collect())
}

fn scalar(value: &Value, place: &str) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        _ => Err(format!("{place} is a text, a number, true or false, or a list of them")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_variable_is_an_error_and_names_the_flag() {
        let check = |name: &str, value: &str| {
            unknown_variables([(name.to_owned(), value.into())].into_iter(), &crate::command())
        };
        let error = check("RIPIENO_MAX_LIVES", "3").unwrap_err();
        assert!(error.contains("RIPIENO_MAX_LIVES") && error.contains("did you mean RIPIENO_MAX_LIVE?"), "{error}");
        assert_eq!(check("RIPIENO_BUILT_FROM", "3"), Ok(vec!["RIPIENO_BUILT_FROM".to_owned()]));
        // A flag of another server, as a ConfigMap that all roles share has them.
        for name in ["RIPIENO_MAX_LIVE", "RIPIENO_SCHEDULERS", "RIPIENO_TOKEN", "RIPIENO_LOG", "PATH"] {
            assert_eq!(check(name, "3"), Ok(vec![]), "{name}");
        }
        assert_eq!(check("RIPIENO_SERVICE_HOST", "10.0.0.1"), Ok(vec![]));
        assert_eq!(check("RIPIENO_PORT", "tcp://10.0.0.1:8000"), Ok(vec![]));
        assert_eq!(check("RIPIENO_PORT_8000_TCP_PROTO", "tcp"), Ok(vec![]));
    }

    /// Returns the words of a command line whose file has this text.
    fn read(text: &str, words: &[&str]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("some.toml");
        std::fs::write(&file, text).unwrap();
        let named = ["--config".to_owned(), file.display().to_string()];
        let words = ["ripieno"].iter().chain(words).map(|word| (*word).to_owned()).chain(named);
        let words = words.map(OsString::from).collect();
        let settings = ServerSettings::read(words, &crate::command());
        let text = |error: String| error.replace(&file.display().to_string(), "FILE");
        let words = settings.map_err(text)?.words;
        // It is a command line of the program.
        crate::command().try_get_matches_from(&words).map_err(|error| error.to_string())?;
        let words = words.into_iter().map(|word| word.into_string().unwrap());
        Ok(words.skip(2).take_while(|word| word != "--config").collect())
    }

    #[test]
    fn settings_become_words_unless_the_command_line_has_them() {
        let text = "log_format = \"json\"\nmax-live = 500\n[serve]\nmax_live = 600\nrepository = \"/models\"\n\
                    strict_readiness = false\nallow_host = [\"a\", \"b\"]\nexit_on_error = true\nallow_symlinks = false\n\
                    load_model = [\"x\", \"y\"]\nmodel_control_mode = \"explicit\"\n[frontend]\nhttp = \":8000\"\n";
        let words = read(text, &["serve"]).unwrap();
        let expected = [
            "--log-format=json",
            "--max-live=600",
            "/models",
            "--strict-readiness=false",
            "--allow-host=a",
            "--allow-host=b",
            "--exit-on-error",
            "--load-model=x,y",
            "--model-control-mode=explicit",
        ];
        assert_eq!(words, expected);
        let words = read(text, &["serve", "elsewhere", "--max-live", "7"]).unwrap();
        assert!(!words.iter().any(|word| word == "/models" || word == "--max-live=600"), "{words:?}");
        assert_eq!(read(text, &["frontend"]).unwrap(), ["--log-format=json", "--max-live=500", "--http=:8000"]);
        // The file of a server says nothing of other commands.
        let other =
            ServerSettings::read(["ripieno", "models"].map(OsString::from).to_vec(), &crate::command()).unwrap();
        assert!(other.file.is_none() && other.words.len() == 2);
    }

    #[test]
    fn mistakes_name_the_file_the_key_and_what_was_meant() {
        let error = |text: &str| read(text, &["serve"]).unwrap_err();
        assert_eq!(error("max_life = 5\n"), "FILE: max_life is no flag of a server; did you mean max_live?");
        assert_eq!(error("[frontend]\nhtp = 5\n"), "FILE: frontend.htp is no flag of a server; did you mean http?");
        assert!(error("serve = 5\n").contains("[serve]"));
        assert!(error("scheduler = \"a:8010\"\n").contains("in [backend] and [frontend]"));
        assert!(error("[serve]\nexit_on_error = 5\n").contains("serve.exit_on_error is true or false"));
        assert!(error("[serve]\nhttp = [\":1\", \":2\"]\n").contains("one value"));
        assert!(error("[serve]\nhttp = { a = 1 }\n").contains("serve.http is a text"));
        assert!(error("max_live = \n").starts_with("FILE: "));
        assert!(error("max_live = \"many\"\n").contains("--max-live"));
        // A flag that needs another is refused without it.
        assert!(error("tls_cert = \"/a.pem\"\n").contains("--tls-key"));
        assert!(error("[serv]\nmax_live = 5\n").contains("did you mean [serve]?"));
        let missing = ServerSettings::read(
            ["ripieno", "serve", "--config", "/no/such.toml"].map(OsString::from).to_vec(),
            &crate::command(),
        );
        assert!(missing.err().unwrap().starts_with("/no/such.toml: "));
    }

    #[test]
    fn an_error_names_the_source_of_a_wrong_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.toml");
        std::fs::write(&path, "[serve]\nmax_live = \"many\"\n").unwrap();
        let source = |words: &[&str], variable: &str| {
            let words = words.iter().map(OsString::from).collect();
            let settings = ServerSettings::read(words, &crate::command()).unwrap();
            let wrong = crate::command().try_get_matches_from(
                settings.words.iter().cloned().chain((!variable.is_empty()).then(|| "--max-loads=no".into())),
            );
            settings.source(&wrong.unwrap_err(), &crate::command(), |name| name == variable)
        };
        let file = path.display().to_string();
        assert_eq!(source(&["ripieno", "serve", "--config", &file], ""), Some(file.clone()));
        assert_eq!(source(&["ripieno", "serve", "--max-live", "few", "--config", &file], ""), None);
        // The parser does not say where a value came from; this one is on no command line.
        assert_eq!(
            source(&["ripieno", "serve"], "RIPIENO_MAX_LOADS"),
            Some("the variable RIPIENO_MAX_LOADS".to_owned())
        );
    }
}
