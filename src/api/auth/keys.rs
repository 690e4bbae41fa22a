//! The keys that are good at this moment: those of the configuration, and those of a file or a secret, which is
//! read again from time to time so that keys come and go without a deployment.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant, SystemTime},
};

use tokio::sync::Mutex;

use super::keyring::Keyring;
use crate::{
    config::AuthConfig,
    error::{Error, Result},
    secrets::Secret,
};

/// A key that is not known may be a new one; asked for this often, the source is read again.
const SOONEST: Duration = Duration::from_secs(5);
/// The longest that a source is waited for while a request waits for it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Keys, and where more of them come from.
#[derive(Debug)]
pub(super) struct Keys {
    fixed: Keyring,
    source: Option<Source>,
    refresh: Duration,
    read: RwLock<Option<Read>>,
    /// Held by the one request that reads the source; others go on with what there is.
    reading: Mutex<Option<Moment>>,
}

#[derive(Debug)]
enum Source {
    File(PathBuf),
    Secret(Secret),
}

/// What a source said, and when.
#[derive(Clone, Debug)]
struct Read {
    ring: Arc<Keyring>,
    at: Moment,
}

/// A moment by both clocks: one may stand still while a function is frozen, the other may be set.
#[derive(Clone, Copy, Debug)]
struct Moment(Instant, SystemTime);

impl Moment {
    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    fn age(self) -> Duration {
        self.0.elapsed().max(self.1.elapsed().unwrap_or_default())
    }
}

impl Keys {
    pub(super) fn new(config: &AuthConfig) -> Result<Self> {
        let source = match (&config.keys_file, &config.keys_secret) {
            (Some(_), Some(_)) => {
                return Err(Error::config("expected `auth.keys_file` or `auth.keys_secret`, but found both"));
            }
            (Some(file), None) => Some(Source::File(file.clone())),
            (None, Some(name)) => Some(Source::Secret(Secret::new(name)?)),
            (None, None) => None,
        };
        Ok(Self {
            fixed: Keyring::parse(&config.keys.join("\n"))?,
            source,
            refresh: Duration::from_secs(config.refresh_s),
            read: RwLock::default(),
            reading: Mutex::default(),
        })
    }

    pub(super) async fn prepare(&self) -> Result<()> {
        match &self.source {
            Some(source) => self.read(source).await,
            None => Ok(()),
        }
    }

    /// The name of the first of the shown keys that is good.
    pub(super) async fn find(&self, shown: &[&str]) -> Result<Option<String>> {
        if let Some(name) = find_in(&self.fixed, shown) {
            return Ok(Some(name));
        }
        let Some(source) = &self.source else { return Ok(None) };
        let known = self.known();
        let age = known.as_ref().map(|read| read.at.age());
        if age.is_none_or(|age| age >= self.refresh) {
            let outcome = self.read_once(source).await;
            // Better the keys of a while ago than nobody at all; the log says so each time.
            if let (Err(error), None) = (outcome, &known) {
                return Err(error);
            }
        }
        let found = self.known().and_then(|read| find_in(&read.ring, shown));
        if found.is_some() || age.is_none_or(|age| age < SOONEST) {
            return Ok(found);
        }
        // Reading it again for a stranger may fail; to him that makes no difference.
        let _ = self.read_once(source).await;
        Ok(self.known().and_then(|read| find_in(&read.ring, shown)))
    }

    fn known(&self) -> Option<Read> {
        self.read.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the source, unless another request does or has just tried.
    async fn read_once(&self, source: &Source) -> Result<()> {
        let Some(known) = self.known() else {
            // Without any keys there is nothing to go on with: everybody waits for whoever reads.
            let mut tried = self.reading.lock().await;
            if self.known().is_some() {
                return Ok(());
            }
            if tried.is_some_and(|tried| tried.age() < Duration::from_secs(1)) {
                return Err(Error::config("expected keys, but their source could not be read a moment ago"));
            }
            let outcome = self.read(source).await;
            *tried = Some(Moment::now());
            return outcome;
        };
        let Ok(mut tried) = self.reading.try_lock() else { return Ok(()) };
        if tried.is_some_and(|tried| tried.age() < SOONEST.min(known.at.age())) {
            return Ok(());
        }
        let outcome = self.read(source).await;
        *tried = Some(Moment::now());
        outcome
    }

    async fn read(&self, source: &Source) -> Result<()> {
        let outcome = source.read().await.and_then(|text| Keyring::parse(&text));
        match outcome {
            Ok(ring) => {
                let read = Read { ring: Arc::new(ring), at: Moment::now() };
                *self.read.write().unwrap_or_else(PoisonError::into_inner) = Some(read);
                Ok(())
            }
            Err(error) => {
                tracing::error!(error = error.chain(), "cannot read the keys");
                Err(error)
            }
        }
    }
}

fn find_in(ring: &Keyring, shown: &[&str]) -> Option<String> {
    shown.iter().find_map(|key| ring.find(key)).map(str::to_owned)
}

impl Source {
    /// Reads the text of the source. One that is empty is an error, as one that is missing: a file that is just being
    /// written, or that was lost, takes no key away.
    async fn read(&self) -> Result<String> {
        let text = match self {
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(Error::io(format!("cannot read the keys in `{}`", path.display()))),
            Self::Secret(secret) => secret.read(PATIENCE).await,
        }?;
        if text.trim().is_empty() {
            let source = match self {
                Self::File(_) => "auth.keys_file",
                Self::Secret(_) => "auth.keys_secret",
            };
            return Err(Error::config(format!(
                "expected keys in `{source}`, but found nothing; a comment (`# none`) takes all keys away"
            )));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::make_key;

    fn keys(file: &std::path::Path) -> Keys {
        let config =
            AuthConfig { keys_file: Some(file.to_owned()), refresh_s: 3600, ..AuthConfig::default() };
        Keys::new(&config).unwrap()
    }

    /// As if the source had been read a while ago.
    fn age(keys: &Keys, by: Duration) {
        let mut read = keys.read.write().unwrap();
        let read = read.as_mut().unwrap();
        read.at = Moment(read.at.0.checked_sub(by).unwrap(), read.at.1 - by);
    }

    #[tokio::test]
    async fn keys_come_and_go_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let ((alice, alices), (bob, bobs)) = (make_key("alice").unwrap(), make_key("bob").unwrap());
        std::fs::write(&file, &alices).unwrap();
        let keys = keys(&file);
        keys.prepare().await.unwrap();
        assert_eq!(keys.find(&[&alice]).await.unwrap().as_deref(), Some("alice"));

        std::fs::write(&file, &bobs).unwrap();
        assert_eq!(keys.find(&[&bob]).await.unwrap(), None, "the file has only just been read");
        age(&keys, SOONEST);
        assert_eq!(
            keys.find(&[&bob]).await.unwrap().as_deref(),
            Some("bob"),
            "a key that is not known may be new"
        );
        assert_eq!(keys.find(&[&alice]).await.unwrap(), None);

        std::fs::remove_file(&file).unwrap();
        age(&keys, Duration::from_secs(3600));
        assert_eq!(keys.find(&[&bob]).await.unwrap().as_deref(), Some("bob"), "better old keys than none");
    }

    #[tokio::test]
    async fn an_emptied_file_keeps_the_keys_and_a_comment_takes_them_away() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let (alice, line) = make_key("alice").unwrap();
        std::fs::write(&file, line).unwrap();
        let keys = keys(&file);
        keys.prepare().await.unwrap();
        let read_again = async |text| {
            std::fs::write(&file, text).unwrap();
            age(&keys, Duration::from_secs(3600));
            // As if the last attempt to read it were long ago.
            *keys.reading.lock().await = None;
            (keys.find(&[&alice]).await.unwrap(), keys.prepare().await)
        };
        for text in ["", " \n\n"] {
            let (found, read) = read_again(text).await;
            assert_eq!(found.as_deref(), Some("alice"), "{text:?}");
            insta::allow_duplicates! {
                insta::assert_snapshot!(read.unwrap_err(), @"expected keys in `auth.keys_file`, but found nothing; a comment (`# none`) takes all keys away");
            }
        }
        assert!(matches!(read_again("# none").await, (None, Ok(()))));
    }

    #[tokio::test]
    async fn a_clock_that_is_set_keeps_no_key_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let ((alice, alices), hour) = (make_key("alice").unwrap(), Duration::from_secs(3600));
        for is_set_back in [true, false] {
            std::fs::write(&file, &alices).unwrap();
            let keys = keys(&file);
            keys.prepare().await.unwrap();
            std::fs::write(&file, "# none").unwrap();
            assert_eq!(keys.find(&[&alice]).await.unwrap().as_deref(), Some("alice"), "not yet read again");
            {
                let mut read = keys.read.write().unwrap();
                let read = read.as_mut().unwrap();
                read.at = match is_set_back {
                    // What was read an hour ago by one clock will be read in an hour by the other.
                    true => Moment(read.at.0.checked_sub(hour).unwrap(), read.at.1 + hour),
                    false => Moment(read.at.0, read.at.1 - hour),
                };
            }
            assert_eq!(keys.find(&[&alice]).await.unwrap(), None, "set back: {is_set_back}");
        }
    }

    #[tokio::test]
    async fn a_source_that_was_never_read_is_an_error_and_heals() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let keys = keys(&file);
        assert!(keys.prepare().await.is_err());
        assert!(keys.find(&["kivu_x"]).await.is_err());
        let (alice, line) = make_key("alice").unwrap();
        std::fs::write(&file, line).unwrap();
        assert!(keys.find(&[&alice]).await.is_err(), "it is not tried again at once");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(keys.find(&[&alice]).await.unwrap().as_deref(), Some("alice"));
    }
}
