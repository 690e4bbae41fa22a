//! Numbers in texts, whose digits a 64-bit number may not hold.

use std::collections::BTreeMap;

use serde_json::{Number, value::RawValue};

/// The same text for all forms of a decimal number, such as `7`, `007` and `70e-1`; `None` for other texts.
pub fn normal_number(text: &str) -> Option<String> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (rest, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() {
        return Some("0".to_owned());
    }
    let exponent = exponent
        .checked_sub(fraction.len() as i64)?
        .checked_add((digits.len() - kept.len()) as i64)?;
    Some(format!("{sign}{kept}e{exponent}"))
}

/// Whether 64-bit integers and floats hold all digits of the numbers in a JSON value.
pub fn is_exact(json: &RawValue) -> bool {
    let json = json.get();
    match json.as_bytes().first() {
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(json)
            .is_ok_and(|items| items.into_iter().all(is_exact)),
        Some(b'{') => serde_json::from_str::<BTreeMap<String, &RawValue>>(json)
            .is_ok_and(|fields| fields.into_values().all(is_exact)),
        Some(b'-' | b'0'..=b'9') => serde_json::from_str::<Number>(json)
            .is_ok_and(|number| normal_number(json) == normal_number(&number.to_string())),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_number_are_equal() {
        let seven = normal_number("7");
        for form in ["007", "+7", "7.0", "7.", "70e-1", "0.07E+2"] {
            assert_eq!(normal_number(form), seven, "{form}");
        }
        assert_ne!(normal_number("-7"), seven);
        assert_eq!(normal_number("-0.00"), normal_number("0e9"));
        for other in [
            "",
            "-",
            "+-7",
            "7a",
            "0x7",
            "1e",
            "1e9223372036854775808",
            ".",
        ] {
            assert_eq!(normal_number(other), None, "{other}");
        }
    }

    #[test]
    fn numbers_with_more_digits_than_64_bits_hold_are_found() {
        let is_exact = |json: &str| is_exact(serde_json::from_str(json).unwrap());
        for json in [
            "18446744073709551615",
            "-9223372036854775808",
            "0.1",
            "1e3",
            "-0.0",
            "0.30000000000000004",
            r#"[1, {"a": [2.5, null, "12345678901234567890123"]}]"#,
        ] {
            assert!(is_exact(json), "{json}");
        }
        for json in [
            "18446744073709551616000001",
            "12345678901234.5678",
            "9007199254740993.0",
            r#"[1, {"a": [12345678901234567890123]}]"#,
        ] {
            assert!(!is_exact(json), "{json}");
        }
    }
}
