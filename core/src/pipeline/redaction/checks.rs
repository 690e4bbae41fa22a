//! Check digits and other rules of the numbers in [`patterns`](super::patterns). Separators between digits are ignored,
//! and letters are in upper case.

use std::net::IpAddr;

/// IBAN lengths by country, from the registry of ISO 13616.
const IBAN_LENGTHS: &str = include_str!("iban-lengths.txt");
/// Country codes of E.164 that ITU has assigned; those with one digit are 1 and 7.
const COUNTRY_CODES: &str = include_str!("country-codes.txt");
const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];

/// Whether a text in a pattern's form passes its check.
type Check = fn(&str) -> bool;

/// The checks of patterns whose expression is not the whole rule.
const CHECKS: [(&str, Check); 21] = [
    ("CREDIT_CARD", card),
    ("IBAN_CODE", iban),
    ("IP_ADDRESS", ip),
    ("PHONE_NUMBER", phone),
    ("DATE_TIME", date),
    ("US_SSN", us_ssn),
    ("US_ITIN", us_itin),
    ("US_NPI", us_npi),
    ("US_BANK_ROUTING", us_routing),
    ("UK_NHS", uk_nhs),
    ("UK_NINO", uk_nino),
    ("ES_NIF", es_nif),
    ("IT_FISCAL_CODE", it_fiscal_code),
    ("PL_PESEL", pl_pesel),
    ("DE_TAX_ID", de_tax_id),
    ("FR_NIR", fr_nir),
    ("NL_BSN", nl_bsn),
    ("SE_PERSONNUMMER", se_personnummer),
    ("FI_HETU", fi_hetu),
    ("NO_NATIONAL_ID", no_national_id),
    ("CH_AHV", ch_ahv),
];

/// Whether a text in a pattern's form passes the pattern's check, if it has one.
pub fn is_valid(pattern: &str, text: &str) -> bool {
    let check = CHECKS.iter().find(|(name, _)| *name == pattern);
    check.is_none_or(|(_, passes)| passes(text))
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

fn number(digits: &[u32]) -> u64 {
    digits
        .iter()
        .fold(0, |number, digit| number * 10 + u64::from(*digit))
}

/// Sum of digits, each multiplied by its weight.
fn weighted(digits: &[u32], weights: &[u32]) -> u32 {
    digits
        .iter()
        .zip(weights)
        .map(|(digit, weight)| digit * weight)
        .sum()
}

/// Whether Luhn's sum of the digits is a multiple of 10.
fn is_luhn(digits: &[u32]) -> bool {
    let doubled = |(place, digit): (usize, &u32)| match place % 2 {
        0 => *digit,
        _ => digit * 2 / 10 + digit * 2 % 10,
    };
    digits.iter().rev().enumerate().map(doubled).sum::<u32>() % 10 == 0
}

/// ISO/IEC 7812-1: Luhn over all digits, which are not all equal.
fn card(text: &str) -> bool {
    let digits = digits(text);
    is_luhn(&digits) && digits.iter().any(|digit| *digit != digits[0])
}

/// The remainder by 97 of digits and letters, which count from 10.
fn remainder_97(characters: impl Iterator<Item = char>) -> u32 {
    characters
        .filter_map(|c| c.to_digit(36))
        .fold(0, |remainder, value| match value {
            0..10 => (remainder * 10 + value) % 97,
            _ => (remainder * 100 + value) % 97,
        })
}

/// ISO 13616: the country's length, check digits from 02 to 98, and remainder 1 by 97 with the first four characters at the end.
fn iban(text: &str) -> bool {
    let compact: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    let (Some(country), Some(rest)) = (compact.get(..2), compact.get(4..)) else {
        return false;
    };
    let length = format!("{country}{}", compact.len());
    let check: u8 = compact[2..4].parse().unwrap_or(0);
    IBAN_LENGTHS.split_whitespace().any(|known| known == length)
        && (2..=98).contains(&check)
        && remainder_97(rest.chars().chain(compact.chars().take(4))) == 1
}

/// An IPv4 address, also with leading zeros, or an IPv6 one with a decimal digit, since `a::b` is also a path in programs.
fn ip(text: &str) -> bool {
    text.split('.').all(|part| part.parse::<u8>().is_ok())
        || text.parse::<IpAddr>().is_ok() && text.contains(|c: char| c.is_ascii_digit())
}

/// E.164: an assigned country code, and 7 to 15 digits. Numbers without `+` or `00` follow the expression.
fn phone(text: &str) -> bool {
    let Some(international) = text.strip_prefix('+').or_else(|| text.strip_prefix("00")) else {
        return true;
    };
    // Letters are before an extension.
    let digits: String = international
        .chars()
        .take_while(|c| !c.is_alphabetic())
        .filter(char::is_ascii_digit)
        .collect();
    (7..=15).contains(&digits.len())
        && COUNTRY_CODES
            .split_whitespace()
            .any(|code| digits.starts_with(code))
}

/// A day that exists: year, month and day in any order in which they are written.
fn date(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    // A time may follow the date.
    let parts: Vec<&str> = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|part| !matches!(*part, "" | "of"))
        .take(3)
        .collect();
    let month = parts
        .iter()
        .find_map(|part| MONTHS.iter().position(|name| part.starts_with(name)));
    let numbers: Vec<u64> = parts
        .iter()
        .map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit());
            part[..end.unwrap_or(part.len())].parse().unwrap_or(0)
        })
        .collect();
    match (month, numbers.as_slice()) {
        (Some(month), [day, 0, year] | [0, day, year]) => is_day(*year, month as u64 + 1, *day),
        (None, [year, month, day]) if *year > 31 => is_day(*year, *month, *day),
        (None, [first, second, year]) => {
            is_day(*year, *second, *first) || is_day(*year, *first, *second)
        }
        _ => false,
    }
}

fn is_day(year: u64, month: u64, day: u64) -> bool {
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// Social Security numbers that the administration assigns.
fn us_ssn(text: &str) -> bool {
    let digits = digits(text);
    let [area, group, serial] = [&digits[..3], &digits[3..5], &digits[5..]].map(number);
    !matches!(area, 0 | 666 | 900..) && group != 0 && serial != 0
}

/// The groups of individual taxpayer numbers.
fn us_itin(text: &str) -> bool {
    matches!(
        number(&digits(text)[3..5]),
        50..=65 | 70..=88 | 90..=92 | 94..=99
    )
}

/// A Federal Reserve district, and a sum with weights 3, 7 and 1.
fn us_routing(text: &str) -> bool {
    let digits = digits(text);
    matches!(number(&digits[..2]), 1..=12 | 21..=32 | 61..=72 | 80)
        && weighted(&digits, &[3, 7, 1, 3, 7, 1, 3, 7, 1]).is_multiple_of(10)
}

/// Luhn with the prefix 80840.
fn us_npi(text: &str) -> bool {
    let digits: Vec<u32> = [8, 0, 8, 4, 0].into_iter().chain(digits(text)).collect();
    is_luhn(&digits)
}

/// Modulo 11 with weights 10 to 1.
fn uk_nhs(text: &str) -> bool {
    let digits = digits(text);
    weighted(&digits, &[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
        && digits.iter().any(|digit| *digit != digits[0])
}

/// A prefix that HMRC allocates.
fn uk_nino(text: &str) -> bool {
    !matches!(&text[..2], "BG" | "GB" | "KN" | "NK" | "NT" | "TN" | "ZZ")
}

/// The letter for the remainder by 23; a foreigner's `X`, `Y` or `Z` counts as 0, 1 or 2.
fn es_nif(text: &str) -> bool {
    let text = text.replace(['-', '.'], "");
    let (number, letter) = text.split_at(text.len() - 1);
    let number = number.replace('X', "0").replace('Y', "1").replace('Z', "2");
    let number: Result<usize, _> = number.parse();
    number.is_ok_and(|number| {
        "TRWAGMYFPDXBNJZSQVHLCKE".get(number % 23..=number % 23) == Some(letter)
    })
}

/// The letter for the remainder by 26 of values that differ by the place.
fn it_fiscal_code(text: &str) -> bool {
    const ODD: [u32; 26] = [
        1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24,
        23,
    ];
    let mut values: Vec<u32> = text
        .chars()
        .filter_map(|c| c.to_digit(36))
        .map(|value| if value < 10 { value } else { value - 10 })
        .collect();
    let Some(check) = values.pop() else {
        return false;
    };
    let value = |(place, value): (usize, &u32)| match place % 2 {
        0 => ODD[*value as usize],
        _ => *value,
    };
    values.iter().enumerate().map(value).sum::<u32>() % 26 == check
}

/// A day, whose month has its century's offset, and a sum with weights 1, 3, 7 and 9.
fn pl_pesel(text: &str) -> bool {
    let digits = digits(text);
    let month = number(&digits[2..4]);
    // From 1800 to 2299; 1900 has no offset.
    let century = 18 + (month / 20 + 1) % 5;
    let year = century * 100 + number(&digits[..2]);
    is_day(year, month % 20, number(&digits[4..6]))
        && weighted(&digits, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1]).is_multiple_of(10)
}

/// ISO 7064, MOD 11,10; among the first ten digits, exactly one occurs two or three times.
fn de_tax_id(text: &str) -> bool {
    let digits = digits(text);
    let (first, check) = digits.split_at(10);
    let counts = (0..10).map(|digit| first.iter().filter(|found| **found == digit).count());
    let repeated: Vec<usize> = counts.filter(|count| *count > 1).collect();
    let product = first.iter().fold(10, |product, digit| {
        let sum = match (digit + product) % 10 {
            0 => 10,
            sum => sum,
        };
        sum * 2 % 11
    });
    matches!(repeated[..], [2 | 3]) && (11 - product) % 10 == check[0]
}

/// 97 minus the remainder by 97; Corsica's `2A` and `2B` count as 19 and 18.
fn fr_nir(text: &str) -> bool {
    let digits = digits(&text.replace("2A", "19").replace("2B", "18"));
    let (person, key) = digits.split_at(digits.len().min(13));
    97 - number(person) % 97 == number(key)
}

/// Modulo 11 with weights 9 to 2, and -1 for the last digit.
fn nl_bsn(text: &str) -> bool {
    let digits = digits(text);
    number(&digits) > 0 && weighted(&digits, &[9, 8, 7, 6, 5, 4, 3, 2, 10]).is_multiple_of(11)
}

/// A day in 19 or 20, and Luhn over the ten digits without the century.
fn se_personnummer(text: &str) -> bool {
    let digits = digits(text);
    let (century, digits) = digits.split_at(digits.len() - 10);
    // 60 is added for numbers that are assigned without a permit of residence.
    let day = number(&digits[4..6]);
    let day = day.checked_sub(60).unwrap_or(day);
    [19, 20]
        .into_iter()
        .filter(|written| century.is_empty() || number(century) == *written)
        .any(|century| {
            is_day(
                century * 100 + number(&digits[..2]),
                number(&digits[2..4]),
                day,
            )
        })
        && is_luhn(digits)
}

/// The character for the remainder by 31.
fn fi_hetu(text: &str) -> bool {
    let (person, check) = text.split_at(text.len() - 1);
    let remainder = number(
        &digits(&person[..6])
            .into_iter()
            .chain(digits(&person[7..]))
            .collect::<Vec<_>>(),
    ) as usize
        % 31;
    "0123456789ABCDEFHJKLMNPRSTUVWXY".get(remainder..=remainder) == Some(check)
}

/// Two digits, each modulo 11.
fn no_national_id(text: &str) -> bool {
    let digits = digits(text);
    weighted(&digits, &[3, 7, 6, 1, 8, 9, 4, 5, 2, 1]).is_multiple_of(11)
        && weighted(&digits, &[5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
        && (1..=12).contains(&(number(&digits[2..4]) % 40))
}

/// EAN-13.
fn ch_ahv(text: &str) -> bool {
    weighted(&digits(text), &[1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1]).is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::redaction::patterns::PATTERNS;

    #[test]
    fn each_check_belongs_to_a_pattern() {
        for (name, _) in CHECKS {
            assert!(
                PATTERNS.iter().any(|pattern| pattern.name == name),
                "{name}"
            );
        }
        assert_eq!(PATTERNS.len(), 41);
    }
}
