//! Optional limits per key: its last day, its models, and its rate.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kivu::{Error, Result};

const DAY: Duration = Duration::from_hours(24);
const MAX_YEAR: u32 = 9999;

/// Limits for a key. Without limits, it is valid indefinitely, for all models, at any rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// The last day on which the key is valid, in UTC.
    pub expires: Option<Date>,
    /// Names of the models that the key may use; all if empty.
    pub models: Vec<String>,
    /// The requests per minute that each server process accepts.
    pub per_minute: Option<u32>,
    /// The requests per day, in UTC, that all server processes with the same table accept together.
    pub per_day: Option<u32>,
}

impl KeyLimits {
    /// Checks that the limits can be written into a line.
    pub fn validate(&self) -> Result<()> {
        match self.models.iter().find(|name| !is_model(name)) {
            Some(name) => Err(Error::config(format!(
                "expected the name of a model without spaces, `,` and `:`, but found `{}`",
                name.escape_default()
            ))),
            None if self.per_minute == Some(0) || self.per_day == Some(0) => Err(Error::config(
                "expected at least 1 request per minute and per day, but found 0",
            )),
            None => Ok(()),
        }
    }

    /// Parses the rest of a line after the hash, such as `expires=2027-01-31 models=minilm,rank per-minute=60`.
    pub fn parse<'a>(fields: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut limits = Self::default();
        for field in fields {
            let is_repeated = match field.split_once('=')? {
                ("expires", date) => limits.expires.replace(date.parse().ok()?).is_some(),
                ("models", names) => {
                    let names: Vec<String> = names.split(',').map(str::to_owned).collect();
                    names.iter().all(|name| is_model(name)).then_some(())?;
                    !std::mem::replace(&mut limits.models, names).is_empty()
                }
                ("per-minute", count) => limits.per_minute.replace(parse_count(count)?).is_some(),
                ("per-day", count) => limits.per_day.replace(parse_count(count)?).is_some(),
                _ => true,
            };
            if is_repeated {
                return None;
            }
        }
        Some(limits)
    }

    /// Whether the key has an expiry date that `now` is past.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|date| now >= date.end())
    }
}

/// The form that `KeyLimits::parse` reads, with a space before each limit.
impl fmt::Display for KeyLimits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(date) = self.expires {
            write!(formatter, " expires={date}")?;
        }
        if !self.models.is_empty() {
            write!(formatter, " models={}", self.models.join(","))?;
        }
        if let Some(count) = self.per_minute {
            write!(formatter, " per-minute={count}")?;
        }
        match self.per_day {
            Some(count) => write!(formatter, " per-day={count}"),
            None => Ok(()),
        }
    }
}

fn parse_count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count > 0)
}

fn is_model(name: &str) -> bool {
    !name.is_empty() && !name.contains([',', ':']) && !name.contains(char::is_whitespace)
}

/// A day in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    year: u32,
    month: u32,
    day: u32,
}

impl Date {
    /// The day after so many days since 1970.
    pub fn after_1970(mut days: u64) -> Self {
        let (mut year, mut month) = (1970, 1);
        while days >= days_in(year, month).into() {
            days -= u64::from(days_in(year, month));
            (year, month) = (year + month / 12, month % 12 + 1);
        }
        let day = days as u32 + 1;
        Self { year, month, day }
    }

    /// The time at which the day ends.
    fn end(self) -> SystemTime {
        let leap_days = |year: u32| year / 4 - year / 100 + year / 400;
        let years = self.year - 1970;
        let days = years * 365 + leap_days(self.year - 1) - leap_days(1969);
        let months: u32 = (1..self.month).map(|month| days_in(self.year, month)).sum();
        UNIX_EPOCH + DAY * (days + months + self.day)
    }
}

fn days_in(year: u32, month: u32) -> u32 {
    let is_leap_year =
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u32::from(is_leap_year),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl FromStr for Date {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let parts: Vec<&str> = text.split('-').collect();
            let [year, month, day] = parts[..] else {
                return None;
            };
            let number = |digits: &str, length: usize| {
                let is_number =
                    digits.len() == length && digits.bytes().all(|byte| byte.is_ascii_digit());
                is_number.then(|| digits.parse::<u32>().ok())?
            };
            let date = Self {
                year: number(year, 4)?,
                month: number(month, 2)?,
                day: number(day, 2)?,
            };
            let is_valid = (1970..=MAX_YEAR).contains(&date.year)
                && (1..=12).contains(&date.month)
                && (1..=days_in(date.year, date.month)).contains(&date.day);
            is_valid.then_some(date)
        };
        parse().ok_or_else(|| {
            Error::config(format!(
                "expected a date such as 2027-01-31, but found `{}`",
                text.escape_default()
            ))
        })
    }
}

impl fmt::Display for Date {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:04}-{:02}-{:02}",
            self.year, self.month, self.day
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<KeyLimits> {
        KeyLimits::parse(text.split_whitespace())
    }

    #[test]
    fn limits_are_read_as_they_are_written() {
        let limits = KeyLimits {
            expires: Some("2028-02-29".parse().unwrap()),
            models: vec!["minilm".into(), "rank".into()],
            per_minute: Some(60),
            per_day: Some(5000),
        };
        limits.validate().unwrap();
        assert_eq!(
            limits.to_string(),
            " expires=2028-02-29 models=minilm,rank per-minute=60 per-day=5000"
        );
        assert_eq!(parse(&limits.to_string()), Some(limits));
        assert_eq!(parse(""), Some(KeyLimits::default()));
    }

    #[test]
    fn invalid_limits_are_refused() {
        for text in [
            "expires=tomorrow",
            "expires=2027-02-29",
            "expires=2027-13-01",
            "expires=2027-1-1",
            "expires=1969-12-31",
            "expires=+027-01-01",
            "models=",
            "models=a,,b",
            "per-minute=0",
            "per-day=0",
            "per-day=1.5",
            "per-minute=-1",
            "scope=all",
            "expires",
            "per-minute=1 per-minute=2",
            "models=a models=b",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(
            KeyLimits {
                models: vec!["a b".into()],
                ..KeyLimits::default()
            }
            .validate()
            .is_err()
        );
        assert!(
            KeyLimits {
                per_minute: Some(0),
                ..KeyLimits::default()
            }
            .validate()
            .is_err()
        );
        assert!(
            KeyLimits {
                per_day: Some(0),
                ..KeyLimits::default()
            }
            .validate()
            .is_err()
        );
    }

    #[test]
    fn a_key_is_valid_until_the_end_of_its_last_day() {
        // The next day's first second, as `date --utc --date 2027-02-01 +%s` prints it.
        for (day, end) in [
            ("1970-01-01", 86_400),
            ("2000-02-29", 951_868_800),
            ("2027-01-31", 1_801_440_000),
            ("2028-12-31", 1_861_920_000),
        ] {
            let limits = KeyLimits {
                expires: Some(day.parse().unwrap()),
                ..KeyLimits::default()
            };
            let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
            assert!(!limits.has_expired(at(end - 1)), "{day}");
            assert!(limits.has_expired(at(end)), "{day}");
        }
    }
}
