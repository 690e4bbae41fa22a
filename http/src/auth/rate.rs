//! Request rates per key. Each process counts its own requests.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use kivu::{clock::Timestamp, locked};

const MINUTE: Duration = Duration::from_secs(60);

/// Requests that keys may still send, by key name: a bucket that refills at the key's rate.
#[derive(Debug, Default)]
pub struct Rates {
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    requests: f64,
    at: Timestamp,
}

impl Rates {
    /// Counts a request by the key `name`; the time until the next one is admitted if it exceeds `per_minute`.
    ///
    /// Only known keys have buckets, so their number is limited.
    pub fn admit(&self, name: &str, per_minute: u32) -> Result<(), Duration> {
        let full = f64::from(per_minute);
        let mut buckets = locked(&self.buckets);
        let before = buckets.get(name).copied().unwrap_or(Bucket {
            requests: full,
            at: Timestamp::now(),
        });
        let refilled = before.requests + before.at.age().as_secs_f64() / 60.0 * full;
        let requests = refilled.min(full);
        let missing = 1.0 - requests;
        let left = if missing > 0.0 {
            requests
        } else {
            requests - 1.0
        };
        buckets.insert(
            name.to_owned(),
            Bucket {
                requests: left,
                at: Timestamp::now(),
            },
        );
        match missing > 0.0 {
            true => Err(Duration::try_from_secs_f64(missing * 60.0 / full).unwrap_or(MINUTE)),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_limited_to_its_rate() {
        let rates = Rates::default();
        let admitted = |name| (0..5).filter(|_| rates.admit(name, 3).is_ok()).count();
        assert_eq!(admitted("alice"), 3);
        assert_eq!(admitted("bob"), 3, "keys have their own rates");
        assert_eq!(admitted("alice"), 0);
        rates.admit("carol", 1).unwrap();
        let wait = rates.admit("carol", 1).unwrap_err();
        assert!(wait > MINUTE / 2 && wait <= MINUTE, "{wait:?}");
        // Twenty seconds are a third of a minute.
        for bucket in rates.buckets.lock().unwrap().values_mut() {
            bucket.at = bucket.at.before(Duration::from_secs(20));
        }
        assert_eq!(admitted("alice"), 1);
        for bucket in rates.buckets.lock().unwrap().values_mut() {
            bucket.at = bucket.at.before(Duration::from_secs(3600));
        }
        assert_eq!(
            admitted("alice"),
            3,
            "unused requests of earlier minutes are lost"
        );
    }
}
