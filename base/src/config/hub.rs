//! The Hugging Face Hub, configured by `huggingface_hub`'s environment variables.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use super::auth::Secret;
use crate::{address::without_user, regular_file};

/// The hub.
const ENDPOINT: &str = "https://huggingface.co";
/// Default for `HF_HUB_DOWNLOAD_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before the first retry; it doubles with each further one.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Access to the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubConfig {
    /// Hub URL, without user information and a trailing slash: `HF_ENDPOINT`.
    pub endpoint: String,
    /// Folder for downloaded files, shared with `huggingface_hub`: `HF_HUB_CACHE`, or `hub` in `HF_HOME`.
    pub cache: PathBuf,
    /// Access token: `HF_TOKEN`, or the one saved by `hf auth login`.
    pub token: Option<Secret>,
    /// Whether only downloaded files are used: `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// Time limit for a response, and for download progress: `HF_HUB_DOWNLOAD_TIMEOUT`.
    pub timeout: Duration,
    /// The pause before the first retry.
    pub retry_pause: Duration,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self::new(&BTreeMap::new())
    }
}

impl HubConfig {
    /// Reads the variables, as `huggingface_hub` does.
    pub fn new(variables: &BTreeMap<String, String>) -> Self {
        let variable = |name: &str| {
            variables
                .get(name)
                .map(|value| value.trim())
                .filter(|it| !it.is_empty())
        };
        let any = |names: &[&str]| names.iter().find_map(|name| variable(name));
        let user = variable("HOME").map(PathBuf::from);
        let expanded = |path: &str| {
            let path = match (path.strip_prefix('~'), variable("HOME")) {
                (Some(rest), Some(user)) if rest.is_empty() || rest.starts_with('/') => {
                    format!("{user}{rest}")
                }
                _ => path.to_owned(),
            };
            PathBuf::from(with_variables(&path, variables))
        };
        let home = variable("HF_HOME").map(expanded).unwrap_or_else(|| {
            let cache = variable("XDG_CACHE_HOME").map(expanded);
            cache
                .unwrap_or_else(|| user.clone().unwrap_or_default().join(".cache"))
                .join("huggingface")
        });
        let token = any(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
            .map(str::to_owned)
            .or_else(|| {
                let path = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), expanded);
                stored_token(&path)
                    .filter(|_| !variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(is_true))
            });
        // A time that no clock reaches would overflow.
        let seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT")
            .and_then(|seconds| seconds.parse::<u64>().ok())
            .map(|seconds| seconds.min(u32::MAX.into()));
        Self {
            endpoint: without_user(variable("HF_ENDPOINT").unwrap_or(ENDPOINT))
                .trim_end_matches('/')
                .to_owned(),
            cache: any(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
                .map_or_else(|| home.join("hub"), expanded),
            token: token.map(Secret),
            offline: any(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]).is_some_and(is_true),
            timeout: seconds
                .filter(|it| *it > 0)
                .map_or(TIMEOUT, Duration::from_secs),
            retry_pause: RETRY_PAUSE,
        }
    }
}

/// A path with the values of `$NAME` and `${NAME}`, as by Python's `expandvars`: unknown names stay.
fn with_variables(path: &str, variables: &BTreeMap<String, String>) -> String {
    let mut parts = path.split('$');
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let end = part.find(is_other).unwrap_or(part.len());
        let braced = part.strip_prefix('{').and_then(|part| part.split_once('}'));
        let (name, rest) = braced.unwrap_or_else(|| part.split_at(end));
        match variables.get(name) {
            Some(value) => expanded.extend([value.as_str(), rest]),
            None => expanded.extend(["$", part]),
        }
    }
    expanded
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// The token that `hf auth login` stored.
fn stored_token(path: &Path) -> Option<String> {
    let token = regular_file::read_to_string(path).ok()?.trim().to_owned();
    Some(token).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn config(pairs: &[(&str, &str)]) -> HubConfig {
        HubConfig::new(
            &pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
        )
    }

    #[test]
    fn the_cache_is_that_of_huggingface_hub() {
        let cache = |pairs: &[(&str, &str)]| config(pairs).cache.display().to_string();
        assert_eq!(cache(&[("HOME", "/u")]), "/u/.cache/huggingface/hub");
        assert_eq!(
            cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")]),
            "/x/huggingface/hub"
        );
        assert_eq!(cache(&[("HOME", "/u"), ("HF_HOME", "~/hf")]), "/u/hf/hub");
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]), "/c");
        let home = |path| cache(&[("HOME", "/u"), ("DISK", "/d"), ("HF_HUB_CACHE", path)]);
        assert_eq!(home("$DISK/hf-${DISK}x"), "/d/hf-/dx");
        assert_eq!(home("/a/$disk/${DISK"), "/a/$disk/${DISK");
        assert_eq!([home("~"), home("~/c"), home("~me")], ["/u", "/u/c", "~me"]);
    }

    #[test]
    fn the_token_is_that_of_the_variable_or_of_the_login() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().to_str().unwrap();
        assert_eq!(config(&[("HF_HOME", path)]).token, None);
        fs::write(home.path().join("token"), "hf_login\n").unwrap();
        assert_eq!(
            config(&[("HF_HOME", path)]).token,
            Some(Secret("hf_login".into()))
        );
        assert_eq!(
            config(&[("HF_HOME", path), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).token,
            None
        );
        let named = config(&[("HF_HOME", path), ("HF_TOKEN", " hf_named ")]);
        assert_eq!(named.token, Some(Secret("hf_named".into())));
        assert!(
            !format!("{named:?}").contains("named"),
            "the log never has tokens"
        );
    }

    #[test]
    fn other_variables_have_the_defaults_of_huggingface_hub() {
        let default = config(&[]);
        assert_eq!(
            (default.endpoint.as_str(), default.offline),
            ("https://huggingface.co", false)
        );
        let other = config(&[
            ("HF_ENDPOINT", "http://mirror/"),
            ("HF_HUB_OFFLINE", "True"),
        ]);
        assert_eq!(
            (other.endpoint.as_str(), other.offline),
            ("http://mirror", true)
        );
        let with_user = config(&[("HF_ENDPOINT", "http://me:word@mirror/hub")]);
        assert_eq!(with_user.endpoint, "http://mirror/hub");
        assert_eq!(
            config(&[("HF_HUB_DOWNLOAD_TIMEOUT", "3")]).timeout,
            Duration::from_secs(3)
        );
        let endless = config(&[("HF_HUB_DOWNLOAD_TIMEOUT", "18446744073709551615")]);
        assert_eq!(endless.timeout, Duration::from_secs(u32::MAX.into()));
    }
}
