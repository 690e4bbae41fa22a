//! `keep_alive`: how long a model stays loaded, in seconds or as a Go duration.

use std::{borrow::Cow, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};

/// The time after a request for which its model stays loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeepAlive(Option<Duration>);

impl KeepAlive {
    /// `None` for as long as possible.
    pub fn duration(self) -> Option<Duration> {
        self.0
    }

    /// Negative times mean as long as possible.
    fn of_seconds(seconds: f64) -> Option<Self> {
        match seconds {
            _ if seconds.is_nan() => None,
            _ if seconds < 0.0 => Some(Self(None)),
            _ => Some(Self(Duration::try_from_secs_f64(seconds).ok())),
        }
    }

    /// Parses a duration such as `5m`, `1h30m`, `-1m` or `300`.
    fn parse(text: &str) -> Option<Self> {
        const UNITS: [(&str, f64); 7] = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("µs", 1e-6),
            ("ms", 1e-3),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
        ];
        if let Ok(seconds) = text.parse() {
            return Self::of_seconds(seconds);
        }
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest.is_empty() {
            return None;
        }
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let (number, others) =
                rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
            let end = others
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(others.len());
            let (unit, others) = others.split_at(end);
            let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
            seconds += number.parse::<f64>().ok()? * factor;
            rest = others;
        }
        Self::of_seconds(sign * seconds)
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected seconds or a duration such as `5m`")]
        enum Given {
            Seconds(f64),
            Text(String),
        }
        let found = match Given::deserialize(value)? {
            Given::Seconds(seconds) => Self::of_seconds(seconds),
            Given::Text(text) => Self::parse(&text),
        };
        found.ok_or_else(|| D::Error::custom("expected seconds or a duration such as `5m`"))
    }
}

impl JsonSchema for KeepAlive {
    fn schema_name() -> Cow<'static, str> {
        "OllamaKeepAlive".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Seconds, or a duration such as `5m`. 0 lets the model leave at once, a negative time keeps it.",
            "anyOf": [
                { "type": "number" },
                { "type": "string", "pattern": "^[-+]?([0-9]+(\\.[0-9]*)?(ns|us|ms|s|m|h))+$" },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn durations_are_as_in_ollama() {
        let read = |value| from_value::<KeepAlive>(value).ok().map(KeepAlive::duration);
        let seconds = |seconds| Some(Some(Duration::from_secs_f64(seconds)));
        assert_eq!(read(json!(0)), seconds(0.0));
        assert_eq!(read(json!("0")), seconds(0.0));
        assert_eq!(read(json!(300)), seconds(300.0));
        assert_eq!(read(json!("5m")), seconds(300.0));
        assert_eq!(read(json!("1h30m")), seconds(5400.0));
        assert_eq!(read(json!("1.5s")), seconds(1.5));
        assert_eq!(read(json!(-1)), Some(None), "as long as possible");
        assert_eq!(read(json!("-1m")), Some(None));
        assert_eq!(read(json!(1e300)), Some(None));
        for wrong in [
            json!(""),
            json!("5"),
            json!("5x"),
            json!("m"),
            json!("-"),
            json!(true),
            json!([]),
        ] {
            assert_eq!(
                read(wrong.clone()).is_some(),
                wrong == json!("5"),
                "{wrong}"
            );
            if let Err(error) = from_value::<KeepAlive>(wrong) {
                let expected = "expected seconds or a duration such as `5m`";
                assert_eq!(error.to_string(), expected);
            }
        }
    }
}
