//! OpenAI's file object, ids and lists.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Result};

/// Hexadecimal digits in an id: the creation time in milliseconds, then random ones.
const ID_DIGITS: usize = 32;
const TIME_DIGITS: usize = 12;
/// OpenAI's limits for expiry, in seconds: one hour to 30 days.
const EXPIRY_S: std::ops::RangeInclusive<u64> = 3600..=2_592_000;

/// Seconds since 1970.
pub(in crate::api) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// A new id. Ids sort by creation time.
pub(in crate::api) fn new_id(prefix: &str) -> String {
    let ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let random = Uuid::new_v4().simple().to_string();
    format!("{prefix}{ms:0TIME_DIGITS$x}{}", &random[TIME_DIGITS..])
}

pub(in crate::api) fn is_id(prefix: &str, text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix(prefix)
        .is_some_and(|id| id.len() == ID_DIGITS && id.bytes().all(is_digit))
}

/// The time since an id was created.
pub(in crate::api) fn age(prefix: &str, id: &str) -> Duration {
    let digits = id
        .strip_prefix(prefix)
        .and_then(|id| id.get(..TIME_DIGITS))
        .unwrap_or_default();
    let created = Duration::from_millis(u64::from_str_radix(digits, 16).unwrap_or_default());
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_sub(created)
}

/// A file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "File")]
pub(in crate::api) struct FileObject {
    /// Begins with `file-`.
    pub(in crate::api) id: String,
    /// `file`.
    pub(in crate::api) object: ObjectKind,
    /// Size in bytes.
    pub(in crate::api) bytes: u64,
    /// Seconds since 1970, like all times.
    pub(in crate::api) created_at: u64,
    /// When the file is deleted, in seconds since 1970.
    pub(in crate::api) expires_at: u64,
    /// The name in the upload.
    pub(in crate::api) filename: String,
    pub(in crate::api) purpose: Purpose,
    /// Always `processed`.
    pub(in crate::api) status: FileStatus,
}

impl FileObject {
    /// A file that was created at `created_at`, and expires after 30 days unless `expires_s` is given.
    pub(in crate::api) fn new(
        id: String,
        bytes: u64,
        filename: String,
        purpose: Purpose,
        expires_s: Option<u64>,
    ) -> Self {
        let created_at = now();
        let expires_at = created_at + expires_s.unwrap_or(*EXPIRY_S.end());
        let (object, status) = (ObjectKind::File, FileStatus::Processed);
        Self {
            id,
            object,
            bytes,
            created_at,
            expires_at,
            filename,
            purpose,
            status,
        }
    }

    pub(in crate::api) fn has_expired(&self, time: u64) -> bool {
        self.expires_at <= time
    }

    /// Whether the file has requests.
    pub(in crate::api) fn is_input(&self) -> bool {
        self.purpose == Purpose::Batch
    }

    pub(super) fn is_for(&self, purpose: &str) -> bool {
        serde_json::to_value(self.purpose).is_ok_and(|own| own == purpose)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(in crate::api) enum ObjectKind {
    Batch,
    File,
    List,
}

/// Purpose of an uploaded file.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(in crate::api) enum UploadPurpose {
    Batch,
}

/// A file's purpose: uploaded requests, or a batch's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(in crate::api) enum Purpose {
    Batch,
    BatchOutput,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(in crate::api) enum FileStatus {
    Processed,
}

/// When a file expires.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `anchor` and `seconds`")]
pub(in crate::api) struct ExpiresAfter {
    /// The time from which `seconds` count.
    #[serde(rename = "anchor")]
    _anchor: Anchor,
    /// From an hour to 30 days.
    #[schemars(range(min = 3600, max = 2_592_000))]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(in crate::api) enum Anchor {
    /// The file's creation.
    CreatedAt,
}

impl ExpiresAfter {
    /// Seconds after the file's creation.
    pub(in crate::api) fn seconds(self, field: &str) -> Result<u64> {
        if EXPIRY_S.contains(&self.seconds) {
            return Ok(self.seconds);
        }
        Err(Error::invalid(format!(
            "expected `{field}.seconds` from {} to {}, but found {}",
            EXPIRY_S.start(),
            EXPIRY_S.end(),
            self.seconds
        )))
    }
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ListQuery {
    /// The last id of the page before.
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    order: Order,
    pub(super) purpose: Option<String>,
}

/// By creation time.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(in crate::api) enum Order {
    Asc,
    #[default]
    Desc,
}

/// Objects by creation time.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub(in crate::api) struct List<T> {
    /// `list`.
    object: ObjectKind,
    /// A page of objects.
    data: Vec<T>,
    /// The first object's id; absent from an empty page.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_id: Option<String>,
    /// The last object's id, which is `after` for the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_id: Option<String>,
    /// Whether there are further objects after the last one.
    has_more: bool,
}

impl ListQuery {
    /// The same page with at most `max` objects, `default` if the query has no limit.
    pub(in crate::api) fn within(mut self, default: usize, max: usize) -> Result<Self> {
        let limit = self.limit.unwrap_or(default);
        if !(1..=max).contains(&limit) {
            return Err(Error::invalid(format!(
                "expected `limit` from 1 to {max}, but found {limit}"
            )));
        }
        self.limit = Some(limit);
        Ok(self)
    }
}

/// The page of the objects that `read` finds for `ids`, which are sorted.
pub(in crate::api) fn page<T>(
    mut ids: Vec<String>,
    query: &ListQuery,
    prefix: &str,
    read: impl Fn(&str) -> Result<Option<T>>,
) -> Result<List<T>> {
    if let Order::Desc = query.order {
        ids.reverse();
    }
    if let Some(after) = &query.after {
        if !is_id(prefix, after) {
            return Err(Error::invalid(format!(
                "expected `after` to be an id that begins with `{prefix}`"
            )));
        }
        ids.retain(|id| match query.order {
            Order::Asc => id > after,
            Order::Desc => id < after,
        });
    }
    let limit = query.limit.unwrap_or(usize::MAX);
    let (mut data, mut shown, mut has_more) = (Vec::new(), Vec::new(), false);
    for id in ids {
        let Some(object) = read(&id)? else { continue };
        if data.len() == limit {
            has_more = true;
            break;
        }
        data.push(object);
        shown.push(id);
    }
    let (first_id, last_id) = (shown.first().cloned(), shown.pop());
    Ok(List {
        object: ObjectKind::List,
        data,
        first_id,
        last_id,
        has_more,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        let id = new_id("file-");
        assert!(
            is_id("file-", &id) && age("file-", &id) < Duration::from_mins(1),
            "{id}"
        );
        let others = [
            &id[1..],
            &id.to_uppercase(),
            "file-",
            "file-../../../../../../etc/passwd0000",
            &format!("{id}0"),
        ];
        assert!(others.iter().all(|other| !is_id("file-", other)));
    }

    #[test]
    fn pages_follow_each_other() {
        let ids: Vec<String> = (0..5).map(|id| format!("f{id:032x}")).collect();
        let pages = |order| {
            let (mut after, mut pages) = (None, Vec::new());
            loop {
                let query = ListQuery {
                    after: after.clone(),
                    limit: Some(2),
                    order,
                    purpose: None,
                };
                let last = |id: &str| Ok(id.pop_last().filter(|digit| *digit != '3'));
                let found = page(ids.clone(), &query, "f", last).unwrap();
                pages.push(found.data);
                after = found.last_id;
                if !found.has_more {
                    return pages;
                }
            }
        };
        assert_eq!(pages(Order::Asc), [vec!['0', '1'], vec!['2', '4']]);
        assert_eq!(pages(Order::Desc), [vec!['4', '2'], vec!['1', '0']]);
    }

    trait PopLast {
        fn pop_last(&self) -> Option<char>;
    }

    impl PopLast for str {
        fn pop_last(&self) -> Option<char> {
            self.chars().next_back()
        }
    }
}
