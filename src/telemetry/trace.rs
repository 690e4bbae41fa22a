//! Trace contexts, in W3C (`traceparent`) or X-Ray (`x-amzn-trace-id`) format.

use std::future::Future;

/// W3C header.
pub const TRACEPARENT: &str = "traceparent";
/// X-Ray header.
pub const X_RAY: &str = "x-amzn-trace-id";

/// A request's position in a distributed trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace id: 32 hexadecimal digits.
    pub id: String,
    /// Calling span's id: 16 hexadecimal digits.
    pub parent: String,
    /// Whether the trace is recorded.
    pub is_sampled: bool,
}

tokio::task_local! {
    static CURRENT: Trace;
}

impl Trace {
    /// Reads a request's headers; the W3C header takes precedence.
    pub fn read<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        header(TRACEPARENT)
            .and_then(Self::from_traceparent)
            .or_else(|| header(X_RAY).and_then(Self::from_x_ray))
    }

    /// `00-TRACE-PARENT-FLAGS`; later versions may have more fields.
    fn from_traceparent(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, id, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        if !is_known || !is_id(id, 32) || !is_id(parent, 16) || !is_hex(flags, 2) {
            return None;
        }
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        Some(Self { id: id.to_owned(), parent: parent.to_owned(), is_sampled })
    }

    /// `Root=1-TIME-REST;Parent=…;Sampled=1`, in any order, possibly with more fields.
    fn from_x_ray(text: &str) -> Option<Self> {
        let field = |name: &str| {
            text.split(';').filter_map(|field| field.trim().split_once('=')).find(|(key, _)| *key == name)
        };
        let (_, root) = field("Root")?;
        let id: String = root.strip_prefix("1-")?.split('-').collect();
        // API Gateway sends a root without a parent.
        let parent = field("Parent").map_or_else(|| id.get(16..).unwrap_or_default(), |(_, parent)| parent);
        let is_good = is_id(&id, 32) && is_id(parent, 16);
        let is_sampled = field("Sampled").is_some_and(|(_, sampled)| sampled == "1");
        is_good.then(|| Self { parent: parent.to_owned(), id: id.clone(), is_sampled })
    }

    /// The current task's trace, for outgoing requests.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Runs `work` with `trace` as the current trace.
    pub async fn follow<T>(trace: Option<Self>, work: impl Future<Output = T>) -> T {
        match trace {
            Some(trace) => CURRENT.scope(trace, work).await,
            None => work.await,
        }
    }

    /// W3C header value.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{:02x}", self.id, self.parent, u8::from(self.is_sampled))
    }
}

/// Whether `text` is `digits` lower-case hexadecimal digits.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
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
            Case(TRACEPARENT, &format!("cc-{ID}-{PARENT}-01-what-comes-later"), Some(&sampled)),
            Case(TRACEPARENT, &format!("{sampled}-more"), None),
            Case(TRACEPARENT, &format!("ff-{ID}-{PARENT}-01"), None),
            Case(TRACEPARENT, &format!("00-{}-{PARENT}-01", "0".repeat(32)), None),
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

    #[tokio::test]
    async fn a_task_has_the_trace_that_it_follows() {
        assert_eq!(Trace::current(), None);
        let trace = Trace { id: ID.into(), parent: PARENT.into(), is_sampled: true };
        let seen = Trace::follow(Some(trace.clone()), async { Trace::current() }).await;
        assert_eq!(seen, Some(trace));
    }
}
