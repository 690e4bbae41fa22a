//! Trace contexts, in W3C (`traceparent`) or X-Ray (`x-amzn-trace-id`) format.

use kivu_base::hexadecimal::is_hex;

/// W3C header.
pub const TRACEPARENT: &str = "traceparent";
/// W3C header with the tracing systems' own values.
pub const TRACESTATE: &str = "tracestate";
/// X-Ray header.
pub const X_RAY: &str = "x-amzn-trace-id";

/// A request's position in a distributed trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace id: 32 hexadecimal digits.
    pub id: String,
    /// Calling span's id: 16 hexadecimal digits.
    pub parent: String,
    /// Whether the trace is recorded; `None` if nobody has decided.
    pub is_sampled: Option<bool>,
    /// The tracing systems' own values.
    pub state: Option<String>,
}

impl Trace {
    /// Reads the environment variables `TRACEPARENT` and `TRACESTATE`, which workflow engines set.
    pub fn from_environment() -> Option<Self> {
        let [parent, state] =
            [TRACEPARENT, TRACESTATE].map(|name| std::env::var(name.to_uppercase()).ok());
        Self::read(|name| match name {
            TRACEPARENT => parent.as_deref(),
            TRACESTATE => state.as_deref(),
            _ => None,
        })
    }

    /// Reads a request's headers; the W3C header takes precedence.
    pub fn read<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let state = || header(TRACESTATE).map(str::to_owned);
        header(TRACEPARENT)
            .and_then(Self::from_traceparent)
            .map(|trace| Self {
                state: state(),
                ..trace
            })
            .or_else(|| header(X_RAY).and_then(Self::from_x_ray))
    }

    /// `00-TRACE-PARENT-FLAGS`; later versions may have more fields.
    fn from_traceparent(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, id, parent, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_known =
            is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        if !is_known || !is_id(id, 32) || !is_id(parent, 16) || !is_hex(flags, 2) {
            return None;
        }
        let is_sampled = Some(u8::from_str_radix(flags, 16).ok()? & 1 == 1);
        Some(Self {
            id: id.to_owned(),
            parent: parent.to_owned(),
            is_sampled,
            state: None,
        })
    }

    /// `Root=1-TIME-REST;Parent=…;Sampled=1`, in any order, possibly with more fields.
    fn from_x_ray(text: &str) -> Option<Self> {
        let field = |name: &str| {
            text.split(';')
                .filter_map(|field| field.trim().split_once('='))
                .find(|(key, _)| *key == name)
        };
        let (_, root) = field("Root")?;
        let id: String = root.strip_prefix("1-")?.split('-').collect();
        // API Gateway sends a root without a parent.
        let parent =
            field("Parent").map_or_else(|| id.get(16..).unwrap_or_default(), |(_, parent)| parent);
        let is_good = is_id(&id, 32) && is_id(parent, 16);
        // `?`, or no field, asks the receiver to decide.
        let is_sampled = match field("Sampled") {
            Some((_, "0")) => Some(false),
            Some((_, "1")) => Some(true),
            _ => None,
        };
        is_good.then(|| Self {
            parent: parent.to_owned(),
            id: id.clone(),
            is_sampled,
            state: None,
        })
    }

    /// W3C header value.
    pub fn traceparent(&self) -> String {
        format!(
            "00-{}-{}-{:02x}",
            self.id,
            self.parent,
            u8::from(self.is_sampled == Some(true))
        )
    }

    /// W3C headers for an outgoing request.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let state = self.state.clone().map(|state| (TRACESTATE, state));
        [(TRACEPARENT, self.traceparent())].into_iter().chain(state)
    }
}

/// Whether `text` consists of `digits` lower-case hexadecimal digits, not all zero.
fn is_id(text: &str, digits: usize) -> bool {
    is_hex(text, digits) && text.bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn read(name: &str, text: &str) -> Option<String> {
        Trace::read(|header| (header == name).then_some(text)).map(|trace| trace.traceparent())
    }

    #[test]
    fn both_formats_are_parsed_and_others_ignored() {
        struct Case<'a>(&'a str, &'a str, Option<&'a str>);
        let sampled = format!("00-{ID}-{PARENT}-01");
        let x_ray = "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1";
        let cases = [
            Case(TRACEPARENT, &sampled, Some(&sampled)),
            Case(
                TRACEPARENT,
                &format!("cc-{ID}-{PARENT}-01-what-comes-later"),
                Some(&sampled),
            ),
            Case(TRACEPARENT, &format!("{sampled}-more"), None),
            Case(TRACEPARENT, &format!("ff-{ID}-{PARENT}-01"), None),
            Case(
                TRACEPARENT,
                &format!("00-{}-{PARENT}-01", "0".repeat(32)),
                None,
            ),
            Case(TRACEPARENT, &sampled.to_uppercase(), None),
            Case(TRACEPARENT, "00-é", None),
            Case(X_RAY, x_ray, Some(&sampled)),
            Case(
                X_RAY,
                "Self=1-0-0;Sampled=1;Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7",
                Some(&sampled),
            ),
            Case(
                X_RAY,
                "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736",
                Some("00-4bf92f3577b34da6a3ce929d0e0e4736-a3ce929d0e0e4736-00"),
            ),
            Case(X_RAY, "Root=arn::myarn", None),
        ];
        for Case(header, text, expected) in cases {
            assert_eq!(read(header, text).as_deref(), expected, "{header}: {text}");
        }
    }

    #[test]
    fn a_decision_and_states_are_kept() {
        let read = |headers: &[(&str, &str)]| {
            let header = |name: &str| {
                headers
                    .iter()
                    .find(|(found, _)| *found == name)
                    .map(|(_, text)| *text)
            };
            Trace::read(header).map(|trace| (trace.is_sampled, trace.state))
        };
        let traceparent = |flags: &str| format!("00-{ID}-{PARENT}-{flags}");
        let state = ("tracestate", "a=1,b=2");
        assert_eq!(
            read(&[(TRACEPARENT, &traceparent("00")), state]),
            Some((Some(false), Some("a=1,b=2".to_owned())))
        );
        assert_eq!(
            read(&[(TRACEPARENT, &traceparent("03"))]),
            Some((Some(true), None))
        );
        let root = "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736";
        for (text, expected) in [
            ("", None),
            (";Sampled=?", None),
            (";Sampled=0", Some(false)),
            (";Sampled=1", Some(true)),
        ] {
            assert_eq!(
                read(&[(X_RAY, &format!("{root}{text}")), state]),
                Some((expected, None)),
                "{text}"
            );
        }
    }
}
