//! Addresses in messages and in the log.

use std::borrow::Cow;

/// An address without its user information, which often is a password, and without its query, which may be a signature.
pub fn shown(address: &str) -> String {
    let mut shown = without_user(address);
    shown.truncate(shown.find(['?', '#']).unwrap_or(shown.len()));
    shown
}

/// A name or another value from a user, which is an address only by mistake.
pub fn shown_value(value: &str) -> Cow<'_, str> {
    match value.contains("//") && value.contains('@') {
        true => shown(value).into(),
        false => value.into(),
    }
}

/// An address without its user information, for requests whose client would log it.
///
/// In doubt, everything up to the last `@` counts as user information: a password may have a slash that is not encoded.
pub fn without_user(address: &str) -> String {
    let (scheme, rest) = match address.find("//") {
        Some(end) if !address[..end].contains('/') => address.split_at(end + "//".len()),
        _ => ("", address),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // After the brackets around an IPv6 address.
    let host_end = authority.rfind(']').map_or(0, |end| end + 1);
    let has_port = authority[host_end..]
        .split_once(':')
        .is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let rest = match rest.rsplit_once('@') {
        Some((_, host)) if authority.contains('@') || !has_port => host,
        _ => rest,
    };
    format!("{scheme}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_information_is_left_out() {
        for (address, expected) in [
            ("https://huggingface.co", "https://huggingface.co"),
            (
                "http://localhost:8080/a/b@main",
                "http://localhost:8080/a/b@main",
            ),
            ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
            (
                "https://me:word@mirror:443/hub?key=1#part",
                "https://mirror:443/hub",
            ),
            ("https://hf_token@mirror", "https://mirror"),
            (
                "Postgres://me:word@one,two/table?password=word",
                "Postgres://one,two/table",
            ),
            ("http://me:w/o?r#d@host/path", "http://host/path"),
            ("http://me:w@o/rd@host", "http://host"),
            ("http://me:1234@host", "http://host"),
            ("me:word@host:80", "host:80"),
            ("//me:word@host", "//host"),
            ("host/a//b", "host/a//b"),
        ] {
            assert_eq!(shown(address), expected);
        }
        for (value, expected) in [
            ("BAAI/bge-small-en-v1.5@main", "BAAI/bge-small-en-v1.5@main"),
            ("a//b?c", "a//b?c"),
            ("https://me:word@huggingface.co/a/b@main", "https://main"),
        ] {
            assert_eq!(shown_value(value), expected);
        }
    }
}
