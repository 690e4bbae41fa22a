//! Requests per day. With a table, all processes share a key's count.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex as SyncMutex},
    time::Duration,
};

use tokio::sync::Mutex;

use kivu::{
    Result,
    clock::{self, Timestamp},
    cloud::{Claim, Cloud, QuotaTable},
    config::AuthConfig,
    locked,
};

const DAY: Duration = Duration::from_hours(24);
/// How long requests are admitted without the table after it could not be reached.
const PAUSE: Duration = Duration::from_secs(5);
/// Divisors for reservations, applied to the requests served and to the limit: few reserved requests are lost when a
/// process ends, and few requests wait for the table.
const SERVED_DIVISOR: u32 = 8;
const LIMIT_DIVISOR: u32 = 100;

/// Requests that keys may still send today, by key name.
#[derive(Debug, Default)]
pub struct Quotas {
    table: Option<Box<dyn QuotaTable>>,
    /// Only known keys have counts, so their number is limited.
    counts: SyncMutex<HashMap<String, Arc<Mutex<Count>>>>,
}

/// One key's requests in this process.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// In days since 1970.
    day: u64,
    served: u32,
    /// Requests that are reserved in the table, but not served.
    reserved: u32,
    /// The limit that the table has refused to exceed.
    exhausted: Option<u32>,
    /// When the table could not be reached.
    failed: Option<Timestamp>,
}

impl Quotas {
    pub fn new(config: &AuthConfig, cloud: &Cloud) -> Result<Self> {
        let table = config
            .quota_table
            .as_deref()
            .map(|name| cloud.quota_table(name))
            .transpose()?;
        Ok(Self {
            table,
            counts: SyncMutex::default(),
        })
    }

    /// Counts a request by the key `name`, unless it exceeds `per_day`.
    ///
    /// If the table cannot be reached, the request is admitted: a table outage must not become a service outage.
    pub async fn admit(&self, name: &str, per_day: u32) -> bool {
        let count = {
            let mut counts = locked(&self.counts);
            Arc::clone(counts.entry(name.to_owned()).or_default())
        };
        let mut count = count.lock().await;
        count.begin(time_of_day().0);
        let is_admitted = match &self.table {
            None => count.served < per_day,
            Some(_) if count.reserved > 0 => {
                count.reserved -= 1;
                true
            }
            Some(_) if count.exhausted == Some(per_day) => false,
            Some(_) if count.failed.is_some_and(|at| at.age() < PAUSE) => true,
            Some(table) => match count.reserve(table.as_ref(), name, per_day).await {
                Ok(is_admitted) => is_admitted,
                Err(error) => {
                    tracing::error!(error = error.chain(), "cannot count the requests of a key");
                    count.failed = Some(Timestamp::now());
                    true
                }
            },
        };
        count.served = count.served.saturating_add(is_admitted.into());
        is_admitted
    }
}

impl Count {
    /// Begins a day, unless the clock was set back across midnight: a day does not begin twice.
    fn begin(&mut self, day: u64) {
        if day != self.day && day + 1 != self.day {
            *self = Self {
                day,
                failed: self.failed,
                ..Self::default()
            };
        }
    }

    /// Reserves quota for this request and a few more, if the limit allows.
    async fn reserve(&mut self, table: &dyn QuotaTable, name: &str, per_day: u32) -> Result<bool> {
        let claim = |requests| Claim {
            key: name,
            day: self.day,
            requests,
            limit: per_day,
        };
        let requests = portion(self.served, per_day);
        let reserved = if table.add(claim(requests)).await? {
            requests
        } else {
            // The day's last requests are reserved one by one.
            u32::from(requests > 1 && table.add(claim(1)).await?)
        };
        self.failed = None;
        self.reserved = reserved.saturating_sub(1);
        self.exhausted = (reserved == 0).then_some(per_day);
        Ok(reserved > 0)
    }
}

/// How many requests to reserve at once.
fn portion(served: u32, per_day: u32) -> u32 {
    (served / SERVED_DIVISOR)
        .min(per_day / LIMIT_DIVISOR)
        .max(1)
}

/// The time until the next day, in UTC.
pub fn until_tomorrow() -> Duration {
    DAY - time_of_day().1
}

/// Days since 1970, and the time since the last one began, in UTC.
fn time_of_day() -> (u64, Duration) {
    let now = clock::since_1970();
    let day = now.as_secs() / DAY.as_secs();
    (day, now - Duration::from_secs(day * DAY.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_limited_to_its_quota() {
        let quotas = Quotas::default();
        let admitted = async |name: &str| {
            let mut admitted = 0;
            for _ in 0..5 {
                admitted += u32::from(quotas.admit(name, 3).await);
            }
            admitted
        };
        assert_eq!(admitted("alice").await, 3);
        assert_eq!(admitted("bob").await, 3, "keys have their own quotas");
        assert_eq!(admitted("alice").await, 0);
        let count = Arc::clone(&quotas.counts.lock().unwrap()["alice"]);
        count.lock().await.day -= 1;
        assert_eq!(admitted("alice").await, 3, "a new day");
    }

    #[test]
    fn a_day_does_not_begin_twice() {
        let mut count = Count::default();
        // The clock is set back across midnight, and by a year that it was wrong.
        for (day, served) in [
            (20_000, 0),
            (20_000, 1),
            (20_001, 0),
            (20_000, 1),
            (20_001, 2),
            (20_002, 0),
            (19_637, 0),
        ] {
            count.begin(day);
            assert_eq!(count.served, served, "{day}");
            count.served += 1;
        }
    }

    /// A process that ends loses at most an eighth of the requests that it has served, and few requests
    /// wait for the table.
    #[test]
    fn portions_grow_with_use() {
        assert_eq!(
            [(0, 9), (99, 9), (16, 10_000), (7_000, 10_000)]
                .map(|(served, of)| portion(served, of)),
            [1, 1, 2, 100]
        );
        let (mut served, mut waits) = (0, 0);
        while served < 10_000 {
            served += portion(served, 10_000);
            waits += 1;
        }
        assert!(waits < 160, "{waits}");
    }
}
