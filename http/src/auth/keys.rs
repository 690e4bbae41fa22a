//! Valid keys: from the configuration, and from a file or secret, which is reread at intervals so that keys can be
//! added and revoked without a deployment.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::sync::Mutex;

use super::keyring::{Key, Keyring};
use kivu::{
    Error, Result,
    clock::Timestamp,
    cloud::{Cloud, Secret},
    config::AuthConfig,
    regular_file,
};

/// Minimum interval between two reads of the source, however many unknown keys arrive.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest interval until keys have been loaded for the first time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a request waits for the source.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Configured keys, and the source for more.
#[derive(Debug)]
pub struct Keys {
    fixed: Keyring,
    source: Option<KeySource>,
    parse: fn(&str) -> (Keyring, Result<()>),
    refresh: Duration,
    loaded: RwLock<Option<Loaded>>,
    /// The last attempt to read the source; locked by the one request that reads it.
    last_attempt: Mutex<Option<Timestamp>>,
}

#[derive(Debug)]
enum KeySource {
    File(PathBuf),
    /// The setting that names it, and the secret.
    Secret(&'static str, Box<dyn Secret>),
    /// The setting that names it, and a secret whose value before the last rotation is valid, too.
    RotatedSecret(&'static str, Box<dyn Secret>),
}

#[derive(Clone, Debug)]
struct Loaded {
    ring: Arc<Keyring>,
    at: Timestamp,
}

impl Keys {
    pub fn new(config: &AuthConfig, cloud: &Cloud) -> Result<Self> {
        let source = match (&config.keys_file, &config.keys_secret) {
            (Some(_), Some(_)) => {
                return Err(Error::config(
                    "expected `auth.keys_file` or `auth.keys_secret`, but found both",
                ));
            }
            (Some(file), None) => Some(KeySource::File(file.clone())),
            (None, Some(name)) => Some(KeySource::Secret("auth.keys_secret", cloud.secret(name)?)),
            (None, None) => None,
        };
        Ok(Self::from_parts(
            Keyring::parse(&config.keys.join("\n"))?,
            source,
            Keyring::of_valid_lines,
            config,
        ))
    }

    /// The trusted proxy's secret, if there is one. During a rotation the previous one is valid, too.
    pub fn of_proxy(config: &AuthConfig, cloud: &Cloud) -> Result<Option<Self>> {
        let parse = |secrets: &str| {
            let secrets = secrets
                .lines()
                .map(str::trim)
                .filter(|secret| !secret.is_empty());
            (Keyring::of("proxy", secrets), Ok(()))
        };
        let (fixed, source) = match (&config.proxy_secret, &config.proxy_secret_id) {
            (Some(_), Some(_)) => {
                return Err(Error::config(
                    "expected `auth.proxy_secret` or `auth.proxy_secret_id`, but found both",
                ));
            }
            (Some(secret), None) => (parse(&secret.0).0, None),
            (None, Some(name)) => {
                let source = KeySource::RotatedSecret("auth.proxy_secret_id", cloud.secret(name)?);
                (Keyring::default(), Some(source))
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(Self::from_parts(fixed, source, parse, config)))
    }

    fn from_parts(
        fixed: Keyring,
        source: Option<KeySource>,
        parse: fn(&str) -> (Keyring, Result<()>),
        config: &AuthConfig,
    ) -> Self {
        Self {
            fixed,
            source,
            parse,
            refresh: Duration::from_secs(config.refresh_s),
            loaded: RwLock::default(),
            last_attempt: Mutex::default(),
        }
    }

    pub async fn prepare(&self) -> Result<()> {
        match &self.source {
            Some(source) => self.read(source).await,
            None => Ok(()),
        }
    }

    /// The first valid key among those shown.
    pub async fn find(&self, shown: &[&str]) -> Result<Option<Key>> {
        if let Some(key) = find_in(&self.fixed, shown) {
            return Ok(Some(key));
        }
        let Some(source) = &self.source else {
            return Ok(None);
        };
        let age = self.loaded().map(|loaded| loaded.at.age());
        if age.is_none_or(|age| age >= self.refresh) {
            let outcome = self.reread(source).await;
            // Old keys stay valid while the source cannot be read; each failure is logged.
            if age.is_none() {
                outcome?;
            }
        }
        let found = self.find_loaded(shown);
        if found.is_some() || age.is_none_or(|age| age < MIN_INTERVAL) {
            return Ok(found);
        }
        // An unknown key may be a new one.
        let _ = self.reread(source).await;
        Ok(self.find_loaded(shown))
    }

    fn find_loaded(&self, shown: &[&str]) -> Option<Key> {
        self.loaded()
            .and_then(|loaded| find_in(&loaded.ring, shown))
    }

    fn loaded(&self) -> Option<Loaded> {
        self.loaded
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reads the source, unless another request is reading it or has just tried.
    async fn reread(&self, source: &KeySource) -> Result<()> {
        let loaded = self.loaded();
        let mut last_attempt = match &loaded {
            Some(_) => match self.last_attempt.try_lock() {
                Ok(last_attempt) => last_attempt,
                Err(_) => return Ok(()),
            },
            // Without any keys, all requests wait for the first read.
            None => self.last_attempt.lock().await,
        };
        let attempt_age = last_attempt.map(Timestamp::age);
        let is_within = |interval| attempt_age.is_some_and(|age| age < interval);
        match loaded {
            Some(loaded) if is_within(MIN_INTERVAL.min(loaded.at.age())) => return Ok(()),
            None if self.loaded().is_some() => return Ok(()),
            None if is_within(RETRY_INTERVAL) => {
                return Err(Error::config(
                    "the source of the keys could not be read a moment ago",
                ));
            }
            _ => {}
        }
        let outcome = self.read(source).await;
        *last_attempt = Some(Timestamp::now());
        outcome
    }

    async fn read(&self, source: &KeySource) -> Result<()> {
        let log = |error: &Error| tracing::error!(error = error.chain(), "cannot read the keys");
        let text = source.read().await.inspect_err(log)?;
        let (ring, checked) = (self.parse)(&text);
        let checked = checked.inspect_err(log);
        // A removed key must not stay valid because of another line, but text without any key is no list of keys.
        if ring.is_empty() || self.loaded().is_none() {
            checked?;
        }
        let loaded = Loaded {
            ring: Arc::new(ring),
            at: Timestamp::now(),
        };
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
        Ok(())
    }
}

fn find_in(ring: &Keyring, shown: &[&str]) -> Option<Key> {
    shown.iter().find_map(|key| ring.find(key)).cloned()
}

impl KeySource {
    /// Reads the source. An empty one is an error, like a missing one, so that a file that is being written, or was
    /// lost, revokes no key.
    async fn read(&self) -> Result<String> {
        let (field, text) = match self {
            Self::File(path) => {
                let action = format!("cannot read the keys in `{}`", path.display());
                (
                    "auth.keys_file",
                    regular_file::read_to_string(path).map_err(Error::io(action))?,
                )
            }
            Self::Secret(field, secret) => (*field, secret.read(TIMEOUT).await?),
            Self::RotatedSecret(field, secret) => {
                (*field, secret.read_versions(TIMEOUT).await?.join("\n"))
            }
        };
        if text.trim().is_empty() {
            return Err(Error::config(format!("`{field}` has no keys"))
                .with_hint("to revoke all keys, leave a comment (`# none`)"));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::keyring::make_key;

    fn keys(file: &std::path::Path) -> Keys {
        let config = AuthConfig {
            keys_file: Some(file.to_owned()),
            refresh_s: 3600,
            ..AuthConfig::default()
        };
        Keys::new(&config, &Cloud::default()).unwrap()
    }

    /// A key's name.
    async fn find(keys: &Keys, key: &str) -> Option<String> {
        keys.find(&[key]).await.unwrap().map(|key| key.name)
    }

    /// Makes the keys older.
    fn age(keys: &Keys, by: Duration) {
        let mut loaded = keys.loaded.write().unwrap();
        let loaded = loaded.as_mut().unwrap();
        loaded.at = loaded.at.before(by);
    }

    #[tokio::test]
    async fn keys_follow_changes_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let ((alice, alices), (bob, bobs)) = (make_key("alice").unwrap(), make_key("bob").unwrap());
        std::fs::write(&file, &alices).unwrap();
        let keys = keys(&file);
        keys.prepare().await.unwrap();
        assert_eq!(find(&keys, &alice).await.as_deref(), Some("alice"));

        std::fs::write(&file, &bobs).unwrap();
        assert_eq!(
            find(&keys, &bob).await,
            None,
            "within the shortest interval"
        );
        age(&keys, MIN_INTERVAL);
        assert_eq!(
            find(&keys, &bob).await.as_deref(),
            Some("bob"),
            "an unknown key may be new"
        );
        assert_eq!(find(&keys, &alice).await, None);

        std::fs::remove_file(&file).unwrap();
        age(&keys, Duration::from_secs(3600));
        assert_eq!(
            find(&keys, &bob).await.as_deref(),
            Some("bob"),
            "old keys stay valid"
        );
    }

    #[tokio::test]
    async fn an_empty_file_keeps_the_keys_and_a_comment_revokes_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let (alice, line) = make_key("alice").unwrap();
        std::fs::write(&file, line).unwrap();
        let keys = keys(&file);
        keys.prepare().await.unwrap();
        let read_again = async |text| {
            std::fs::write(&file, text).unwrap();
            age(&keys, Duration::from_secs(3600));
            // Forgets the last attempt.
            *keys.last_attempt.lock().await = None;
            (find(&keys, &alice).await, keys.prepare().await)
        };
        for text in ["", " \n\n"] {
            let (found, read) = read_again(text).await;
            assert_eq!(found.as_deref(), Some("alice"), "{text:?}");
            insta::allow_duplicates! {
                insta::assert_snapshot!(read.unwrap_err(), @"`auth.keys_file` has no keys; to revoke all keys, leave a comment (`# none`)");
            }
        }
        assert!(matches!(read_again("# none").await, (None, Ok(()))));
    }

    #[tokio::test]
    async fn a_malformed_line_keeps_no_removed_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let ((alice, alices), (bob, bobs)) = (make_key("alice").unwrap(), make_key("bob").unwrap());
        let (carol, carols) = make_key("carol").unwrap();
        let malformed = format!("{carols} expires=soon");
        std::fs::write(&file, &malformed).unwrap();
        let keys = keys(&file);
        assert!(keys.prepare().await.is_err(), "at the start");
        std::fs::write(&file, format!("{alices}\n{bobs}\n{carols}")).unwrap();
        keys.prepare().await.unwrap();
        let read_again = async |text: &str| {
            std::fs::write(&file, text).unwrap();
            age(&keys, Duration::from_secs(3600));
            *keys.last_attempt.lock().await = None;
            [
                find(&keys, &alice).await.is_some(),
                find(&keys, &bob).await.is_some(),
                find(&keys, &carol).await.is_some(),
            ]
        };
        let repeated = format!("{bobs}\n{carols}\n{carols} per-day=5");
        for text in [format!("{malformed}\n{bobs}"), repeated] {
            assert_eq!(read_again(&text).await, [false, true, false], "{text}");
        }
        assert_eq!(read_again("<html>").await, [false, true, false]);
    }

    #[tokio::test]
    async fn setting_a_clock_does_not_keep_keys() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let ((alice, alices), hour) = (make_key("alice").unwrap(), Duration::from_secs(3600));
        for is_set_back in [true, false] {
            std::fs::write(&file, &alices).unwrap();
            let keys = keys(&file);
            keys.prepare().await.unwrap();
            std::fs::write(&file, "# none").unwrap();
            assert_eq!(
                find(&keys, &alice).await.as_deref(),
                Some("alice"),
                "not reread yet"
            );
            {
                let mut loaded = keys.loaded.write().unwrap();
                let loaded = loaded.as_mut().unwrap();
                loaded.at = match is_set_back {
                    // Read an hour ago by one clock, in an hour by the other.
                    true => Timestamp(loaded.at.0.checked_sub(hour).unwrap(), loaded.at.1 + hour),
                    false => Timestamp(loaded.at.0, loaded.at.1 - hour),
                };
            }
            assert_eq!(find(&keys, &alice).await, None, "set back: {is_set_back}");
        }
    }

    #[tokio::test]
    async fn an_unreadable_source_is_an_error_until_it_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let keys = keys(&file);
        assert!(keys.prepare().await.is_err());
        assert!(keys.find(&["kivu_x"]).await.is_err());
        let (alice, line) = make_key("alice").unwrap();
        std::fs::write(&file, line).unwrap();
        assert!(keys.find(&[&alice]).await.is_err(), "not retried at once");
        tokio::time::sleep(RETRY_INTERVAL).await;
        assert_eq!(find(&keys, &alice).await.as_deref(), Some("alice"));
    }
}
