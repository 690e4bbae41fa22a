//! Generated numbers, and texts that are redacted and restored.

use std::{env, ops::Range};

use fastrand::Rng;

use super::{
    Key, Redaction, checks,
    patterns::{PATTERNS, Patterns},
    placeholders::{Mapping, Memory, NumberScope, Replacement, Style, restore},
};
use crate::pipeline::entities::{Entity, EntityLabel, TextEntities};

const DIGITS: &str = "0123456789";
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A pattern's names in a text, with what they cover.
fn found<'a>(names: &[&str], text: &'a str) -> Vec<&'a str> {
    let found = Patterns::new(names).unwrap().matches(text);
    found.into_iter().map(|found| &text[found.range]).collect()
}

/// Texts in a form: `#` is a digit, `?` a letter, `*` any of `check`, and others stay.
fn filled(form: &str, check: &[char], random: &mut Rng) -> Vec<String> {
    let mut any = |characters: &str| {
        let characters: Vec<char> = characters.chars().collect();
        characters[random.usize(..characters.len())]
    };
    let base: String = form
        .chars()
        .map(|c| match c {
            '#' => any(DIGITS),
            '?' => any(LETTERS),
            c => c,
        })
        .collect();
    let places: Vec<usize> = base.match_indices('*').map(|(place, _)| place).collect();
    // Each combination of check characters.
    places.iter().fold(vec![base], |texts, place| {
        let with = |text: &String, check: &char| {
            let mut text = text.clone();
            text.replace_range(*place..=*place, check.encode_utf8(&mut [0; 4]));
            text
        };
        texts
            .iter()
            .flat_map(|text| check.iter().map(move |check| with(text, check)))
            .collect()
    })
}

/// Forms with check characters: the others are random, and one combination of check characters is right.
#[rustfmt::skip]
const CHECKED: [(&str, &[&str]); 17] = [
    ("CREDIT_CARD", &["4##############*", "5### #### #### ###*", "3### ###### ####*", "6###-####-####-###*"]),
    ("IBAN_CODE", &["DE**##################", "GB** ???? #### #### #### ##", "FR**####################?##"]),
    ("US_NPI", &["1########*"]),
    ("US_BANK_ROUTING", &["02######*", "12######*"]),
    ("UK_NHS", &["### ### ###*", "#########*"]),
    ("ES_NIF", &["########*", "X#######*", "Y-#######-*"]),
    ("IT_FISCAL_CODE", &["??????##A##?###*"]),
    ("PL_PESEL", &["##0#1#####*", "##2#0#####*"]),
    ("DE_TAX_ID", &["12345678##*", "8609574271*"]),
    ("FR_NIR", &["1########6##0**", "2 85 05 78 006 084 **", "1 ## ## 2A ### ### **"]),
    ("NL_BSN", &["1#######*"]),
    ("SE_PERSONNUMMER", &["##0#1#-###*", "19##0#1#-###*"]),
    ("FI_HETU", &["######-###*", "######A###*"]),
    ("NO_NATIONAL_ID", &["##0######**", "##0### ###**"]),
    ("CH_AHV", &["756.####.####.#*", "756########*#"]),
    ("CREDIT_CARD", &["2#################*"]),
    ("IBAN_CODE", &["NO** #### #### ###"]),
];

/// Numbers of each kind; the environment variable `NUMBERS` overrides it.
const NUMBERS: usize = 1000;

/// Numbers of each kind, right ones and as many with another digit in one place.
#[test]
fn numbers_with_check_digits_are_found_and_wrong_ones_are_not() {
    let each: usize = env::var("NUMBERS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(NUMBERS);
    let mut random = Rng::with_seed(62);
    for (name, forms) in CHECKED {
        let (mut right, mut wrong) = (0, 0);
        let check: Vec<char> = match name {
            "ES_NIF" | "IT_FISCAL_CODE" => LETTERS.chars().collect(),
            "FI_HETU" => format!("{DIGITS}{LETTERS}").chars().collect(),
            _ => DIGITS.chars().collect(),
        };
        let patterns = Patterns::new(&[name]).unwrap();
        let pattern = PATTERNS.iter().find(|pattern| pattern.name == name);
        let pattern = pattern.expect("a pattern");
        let mut attempts = 0..100 * each;
        while right < each {
            attempts.next().expect("a form that is found");
            let form = forms[random.usize(..forms.len())];
            let candidates = filled(form, &check, &mut random);
            // Exactly one combination is right, unless the other digits allow none.
            let neighbours = [
                ("", ""),
                ("No. ", ", paid"),
                ("番号は", "です。"),
                ("(", ")."),
                ("Größe", "EUR"),
            ];
            // The last ones are for numbers that may touch words.
            let count = neighbours.len() - usize::from(!pattern.touches_words);
            let (before, after) = neighbours[random.usize(..count)];
            let text = |number: &str| format!("{before}{number}{after}");
            let matches = |number: &str| {
                let text = text(number);
                let found = patterns.matches(&text);
                assert!(found.len() < 2, "{name} {text}");
                found
                    .first()
                    .is_some_and(|found| &text[found.range.clone()] == number)
            };
            let accepts = |number: &&String| checks::is_valid(name, number);
            let all: Vec<&String> = candidates.iter().filter(accepts).collect();
            assert!(all.len() <= 1, "{name} {all:?}");
            let [number] = all[..] else { continue };
            assert!(matches(number), "{name} {number}");
            right += 1;
            let places: Vec<usize> = number
                .char_indices()
                .filter(|(_, c)| c.is_ascii_digit())
                .map(|(place, _)| place)
                .collect();
            let place = places[random.usize(..places.len())];
            let digit = number.as_bytes()[place] - b'0';
            let other = (digit + random.u8(1..10)) % 10;
            let changed = format!("{}{other}{}", &number[..place], &number[place + 1..]);
            let taken = patterns.matches(&text(&changed));
            assert_eq!(taken, [], "{name} {number}");
            wrong += 1;
        }
        eprintln!("{name}: {right} right ones found, {wrong} wrong ones refused");
    }
}

/// Product numbers, keys and hashes of letters and digits, a word before digits, and how many of 1,000 are taken for a card.
#[test]
fn words_of_letters_and_digits_are_no_numbers() {
    let mut random = Rng::with_seed(4);
    let any = |characters: &str, length: usize, random: &mut Rng| -> String {
        let characters: Vec<char> = characters.chars().collect();
        (0..length)
            .map(|_| characters[random.usize(..characters.len())])
            .collect()
    };
    let beside_words = PATTERNS.iter().filter(|pattern| pattern.touches_words);
    let names: Vec<_> = beside_words.map(|pattern| &pattern.name).collect();
    let patterns = Patterns::new(&names).unwrap();
    let mut taken = |letters: &str, length: usize, word: &str| {
        let texts = (0..1000).map(|_| format!("{word}{}", any(letters, length, &mut random)));
        texts
            .filter(|text| !patterns.matches(text).is_empty())
            .count()
    };
    let hex = "0123456789abcdef";
    let base36 = format!("{DIGITS}{LETTERS}");
    let found = [
        taken(hex, 40, ""),
        taken(hex, 64, ""),
        taken(&base36, 24, ""),
        taken(&base36, 16, "SN"),
        taken(DIGITS, 12, "SKU"),
        taken(DIGITS, 16, "SKU"),
        taken(DIGITS, 16, "SKU7X"),
    ];
    assert_eq!(found, [0, 0, 0, 0, 0, 57, 0]);
    // Four groups of four with a separator. Lists have commas, so groups between them are no number.
    let mut taken = |letters: &str, separator: &str| {
        let mut groups = || {
            (0..4)
                .map(|_| any(letters, 4, &mut random))
                .collect::<Vec<_>>()
        };
        let texts = (0..1000).map(|_| groups().join(separator));
        texts
            .filter(|text| !patterns.matches(text).is_empty())
            .count()
    };
    let found = ["-", "/", "_", ","]
        .map(|separator| [DIGITS, hex, &base36].map(|letters| taken(letters, separator)));
    assert_eq!(found, [[60, 0, 0], [41, 0, 0], [46, 0, 0], [0; 3]]);
}

/// Web pages and word processors write spaces and hyphens that do not break, and keyboards the digits of a script.
#[test]
fn separators_and_digits_beyond_ascii_are_read() {
    for (name, text) in [
        (
            "IBAN_CODE",
            "DE89\u{a0}3704\u{a0}0044\u{a0}0532\u{a0}0130\u{a0}00",
        ),
        ("IBAN_CODE", "ＤＥ８９ 3704 0044 0532 0130 00"),
        ("CREDIT_CARD", "4111\u{2011}1111\u{2011}1111\u{2011}1111"),
        ("CREDIT_CARD", "４１１１　１１１１　１１１１　１１１１"),
        (
            "PHONE_NUMBER",
            "+33\u{202f}6\u{202f}12\u{202f}34\u{202f}56\u{202f}78",
        ),
        ("US_SSN", "123\u{2011}45\u{2011}6789"),
        ("DATE_TIME", "3\u{a0}May 2024"),
        ("EMAIL_ADDRESS", "anna＠example.com"),
        ("CREDIT_CARD", "٤١١١ ١١١١ ١١١١ ١١١١"),
        ("IBAN_CODE", "DE८९ ३७०४ ००४४ ०५३२ ०१३० ००"),
        ("PHONE_NUMBER", "+๖๖ ๒ ๑๒๓ ๔๕๖๗"),
        ("DATE_TIME", "۲۰۲۴-۰۵-۰۳"),
        ("IP_ADDRESS", "𝟙𝟘.𝟘.𝟘.𝟙"),
    ] {
        let longer = format!("\u{a0}é：{text}\u{a0}—\u{a0}{text}。");
        assert_eq!(found(&[name], &longer), [text, text], "{name}");
    }
    // Dashes separate.
    assert_eq!(
        found(
            &["DATE_TIME", "EMAIL_ADDRESS"],
            "2024-05-01–2024-05-03, me—anna@example.com"
        ),
        ["anna@example.com", "2024-05-01", "2024-05-03"]
    );
}

/// JSON, Python, HTML and URLs write some characters as their numbers.
#[test]
fn escapes_hide_nothing() {
    for (name, text, expected) in [
        (
            "CREDIT_CARD",
            r"no:\u00a04111 1111 1111 1111, \u003cb\u003e4111\u00a01111&nbsp;1111 \xa01111\u003c/b\u003e",
            [r"4111\u00a01111&nbsp;1111 \xa01111", "4111 1111 1111 1111"],
        ),
        (
            "CREDIT_CARD",
            r"\u001b[31m4111 1111 1111 1111\u001b[0m \ud83d\ude004111\u200b111111111111",
            [r"4111\u200b111111111111", "4111 1111 1111 1111"],
        ),
        (
            "EMAIL_ADDRESS",
            r"Anna \u003canna@example.com\u003e, ?to=anna%40example.com&id=1",
            ["to=anna%40example.com", "anna@example.com"],
        ),
        (
            "EMAIL_ADDRESS",
            r"anna&#x40;example.com, bob&#64;example.com &amp; &#; &#xg; &",
            ["anna&#x40;example.com", "bob&#64;example.com"],
        ),
        (
            "PHONE_NUMBER",
            r"\u002B49 30 1234567, phone=%2b49%2030%201234567",
            ["%2b49%2030%201234567", r"\u002B49 30 1234567"],
        ),
        (
            "URL",
            r"https://a.org/?to=a%40b.org\u0026id=1\u003cbr> www.b.org/a%20b \u \x4 %4",
            [r"https://a.org/?to=a%40b.org\u0026id=1", "www.b.org/a%20b"],
        ),
    ] {
        assert_eq!(found(&[name], text), expected, "{text}");
    }
}

/// URLs and mails also write what is beside a number as its code.
#[test]
fn escapes_are_no_part_of_a_number() {
    let token = format!("ghp_{}", "a1".repeat(18));
    for (name, text) in [
        ("CREDIT_CARD", "4111111111111111"),
        ("IBAN_CODE", "DE89370400440532013000"),
        ("IP_ADDRESS", "192.168.0.1"),
        ("US_SSN", "078-05-1120"),
        ("GITHUB_TOKEN", &token),
    ] {
        for (before, after) in [
            ("%22", "%22"),
            ("a%3D", "%26b"),
            ("%2522", "%2522"),
            ("%E2%80%9C", "%E2%80%9D"),
            ("a=3D", "=20"),
        ] {
            let longer = format!("{before}{text}{after}");
            assert_eq!(found(&[name], &longer), [text], "{longer}");
        }
    }
    // A letter, and a number.
    for before in ["%41", "id=20"] {
        let longer = format!("{before}{token}");
        assert_eq!(found(&["GITHUB_TOKEN"], &longer), [""; 0]);
    }
}

/// A number, an address or a key with something between its characters that a reader does not see.
#[test]
fn invisible_characters_hide_nothing() {
    let token = format!("ghp_{}", "a1".repeat(18));
    for (name, text) in [
        ("CREDIT_CARD", "4111 1111 1111 1111"),
        ("IBAN_CODE", "DE89 3704 0044 0532 0130 00"),
        ("PHONE_NUMBER", "+44 20 7946 0958"),
        ("EMAIL_ADDRESS", "anna@example.com"),
        ("US_SSN", "123-45-6789"),
        ("GITHUB_TOKEN", &token),
    ] {
        for mark in [
            "\u{ad}",
            "\u{200b}",
            "\u{200d}",
            "\u{200e}",
            "\u{202a}",
            "\u{2060}",
            "\u{feff}",
            "\u{fe0f}",
            "\u{34f}",
            "\u{61c}",
            "\u{3164}",
            "\0",
            "\u{1b}[1m",
        ] {
            for place in 1..text.len() {
                let (start, end) = text.split_at(place);
                let marked = format!("{start}{mark}{end}");
                // An address begins with a word.
                let word = if name == "EMAIL_ADDRESS" { " " } else { "x" };
                let longer = format!("{word}{mark}{marked}{mark}, {marked}");
                let found = found(&[name], &longer);
                assert_eq!(found, [&marked, &marked], "{name} {longer:?}");
            }
        }
    }
}

#[test]
fn numbers_continue_behind_line_ends_and_dashes() {
    for (name, text) in [
        ("CREDIT_CARD", "4111 1111 1111 1111"),
        ("IBAN_CODE", "GB29 NWBK 6016 1331 9268 19"),
        ("PHONE_NUMBER", "+44 20 7946 0958"),
        ("UK_NHS", "943 476 5919"),
        ("US_SSN", "123 45 6789"),
        ("DATE_TIME", "3 May 2024"),
    ] {
        for separator in [
            "\n", "\r\n", "\n> ", "\n\t", "\t", "  ", "\u{2028}", "\\n", "\\r\\n", " - ", "–",
            "\u{2012}", " −\n",
        ] {
            let places: Vec<usize> = text.match_indices(' ').map(|(place, _)| place).collect();
            for place in &places {
                let broken = format!("{}{separator}{}", &text[..*place], &text[place + 1..]);
                let longer = format!("No.\n{broken},\n\n{broken}\nThe end");
                let found = found(&[name], &longer);
                assert_eq!(found, [&broken, &broken], "{name} {longer:?}");
            }
        }
    }
    assert_eq!(found(&["US_SSN"], "123-\n45-6789"), ["123-\n45-6789"]);
    // What is complete in a line ends there, and paragraphs divide.
    let lines = "+442079460958\n12 apples\nDE89 3704 0044 0532 0130 00\n5 pears";
    assert_eq!(found(&["PHONE_NUMBER"], &lines[..23]), ["+442079460958"]);
    assert_eq!(
        found(&["IBAN_CODE"], lines),
        ["DE89 3704 0044 0532 0130 00"]
    );
    assert_eq!(found(&["CREDIT_CARD"], "4111 1111\n\n1111 1111"), [""; 0]);
    // A row of separators is read once.
    let long = format!("1{}2", " -\n".repeat(1_000_000));
    assert_eq!(found(&["CREDIT_CARD"], &long), [""; 0]);
}

/// Forms and neighbours in which numbers, addresses and keys are found, with what is found.
#[test]
fn forms_and_neighbours() {
    let pem =
        "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0B\\nAQ==\\n-----END PRIVATE KEY-----";
    let cut =
        "-----BEGIN RSA PRIVATE KEY-----\n> MIIEvQIBADANBgkqhkiG9w0B\n> AQEFAASCBKcwggSjAgEAAoIB";
    for (name, text, expected) in [
        (
            "IBAN_CODE",
            "de89 3704 0044 0532 0130 00², DE89.3704.0044.0532.0130.00 and DE 89 37040044 0532013000",
            &[
                "de89 3704 0044 0532 0130 00",
                "DE89.3704.0044.0532.0130.00",
                "DE 89 37040044 0532013000",
            ][..],
        ),
        (
            "CREDIT_CARD",
            "_4111.1111.1111.1111_ card_4111111111111111.pdf",
            &["4111.1111.1111.1111", "4111111111111111"],
        ),
        (
            "CREDIT_CARD",
            "6200 0000 0000 0000 000, 3782 8224 6310 005, 4111 1111 1111 1111-2",
            &[
                "6200 0000 0000 0000 000",
                "4111 1111 1111 1111",
                "3782 8224 6310 005",
            ],
        ),
        (
            "IP_ADDRESS",
            "10.0.0.1-10.0.0.25 010.001.000.255",
            &["010.001.000.255", "10.0.0.25", "10.0.0.1"],
        ),
        (
            "DATE_TIME",
            "01.05.2024-03.05.2024, 01/05/2024-03/05/2024",
            &["01.05.2024", "03.05.2024", "01/05/2024", "03/05/2024"],
        ),
        (
            "DATE_TIME",
            "3 AUGUST 2024, 03-May-2024, [10/Oct/2000:13:55:36], 3rd of May 2024",
            &[
                "3rd of May 2024",
                "3 AUGUST 2024",
                "03-May-2024",
                "10/Oct/2000",
            ],
        ),
        (
            "PHONE_NUMBER",
            "0044 20 7946 0958, +1-202-555-0143x12; 0000123456",
            &["+1-202-555-0143x12", "0044 20 7946 0958"],
        ),
        (
            "EMAIL_ADDRESS",
            "_anna@example.com_ bob@example.org2",
            &["_anna@example.com", "bob@example.org2"],
        ),
        (
            "EMAIL_ADDRESS",
            "\"ann lee\"@example.com अन्ना@उदाहरण.भारत 写信给ann@例え.jp谢谢",
            &["अन्ना@उदाहरण.भारत", "\"ann lee\"@example.com", "ann@例え.jp"],
        ),
        (
            "EMAIL_ADDRESS",
            r#""To:\nann@example.com\tbob@example.com""#,
            &["ann@example.com", "bob@example.com"],
        ),
        (
            "CREDIT_CARD",
            r"Card:\n4111 1111 1111 1111\r\n",
            &["4111 1111 1111 1111"],
        ),
        (
            "CREDIT_CARD",
            "4111/1111/1111/1111 card_4111_1111_1111_1111_12_25 3782_822463_10005",
            &[
                "4111/1111/1111/1111",
                "4111_1111_1111_1111",
                "3782_822463_10005",
            ],
        ),
        (
            "IBAN_CODE",
            "de89_3704_0044_0532_0130_00.csv DE89/3704/0044/0532/0130/00",
            &["de89_3704_0044_0532_0130_00", "DE89/3704/0044/0532/0130/00"],
        ),
        (
            "URL",
            "to=https%3A%2F%2Fme%3Apw%40b.org%2Fx redis%3a%2f%2f:pw@h",
            &["https%3A%2F%2Fme%3Apw%40b.org%2Fx", "redis%3a%2f%2f:pw@h"],
        ),
        (
            "URL",
            r#"Seehttps://a.org/x, "https:\/\/b.org\/y", redis://:pw@h:6379."#,
            &[
                "Seehttps://a.org/x",
                r"https:\/\/b.org\/y",
                "redis://:pw@h:6379",
            ],
        ),
        (
            "US_SSN",
            "123 45 6789 and 123.45.6789",
            &["123 45 6789", "123.45.6789"],
        ),
        (
            "ES_NIF",
            "12.345.678-Z 12345678z",
            &["12.345.678-Z", "12345678z"],
        ),
        (
            "NL_BSN",
            "1112.22.333 111 222 333",
            &["1112.22.333", "111 222 333"],
        ),
        ("IT_FISCAL_CODE", "rssmra85t10a562s", &["rssmra85t10a562s"]),
        ("FI_HETU", "131052-308t", &["131052-308t"]),
        ("SE_PERSONNUMMER", "198112189876", &["198112189876"]),
        ("UK_NINO", "ab-12-34-56-c", &["ab-12-34-56-c"]),
        ("CH_AHV", "756 9217 0769 85", &["756 9217 0769 85"]),
        ("PRIVATE_KEY", pem, &[pem]),
        ("PRIVATE_KEY", cut, &[cut]),
    ] {
        assert_eq!(found(&[name], text), expected, "{name} {text}");
    }
}

/// Words that touch numbers, and forms, in which a plus is a space.
#[test]
fn words_and_forms_hide_nothing() {
    for (name, text, expected) in [
        (
            "CREDIT_CARD",
            "Karte4111111111111111, 4111 1111 1111 1111EUR, card4111-1111-1111-1111exp; A1B4111111111111111",
            &[
                "4111 1111 1111 1111",
                "4111-1111-1111-1111",
                "4111111111111111",
            ][..],
        ),
        (
            "CREDIT_CARD",
            "card=4111+1111+1111+1111&name=Ann+4111+1111+1111+1111",
            &["4111+1111+1111+1111", "4111+1111+1111+1111"],
        ),
        (
            "IBAN_CODE",
            "IBANDE89370400440532013000BIC iban=MT84+MALT+0110+0001+2345+MTLC+AST0+01S",
            &[
                "MT84+MALT+0110+0001+2345+MTLC+AST0+01S",
                "DE89370400440532013000",
            ],
        ),
        (
            "PHONE_NUMBER",
            "to=%2B49+30+1234567, +4930123456+4930654321, +49 30 123456+49 30 654321",
            &[
                "%2B49+30+1234567",
                "+49 30 123456",
                "+49 30 654321",
                "+4930123456",
                "+4930654321",
            ],
        ),
    ] {
        assert_eq!(found(&[name], text), expected, "{name} {text}");
    }
}

/// Numbers and words that touch, of which one seemed to continue the other.
#[test]
fn matches_hide_nothing_beside_them() {
    let (card, date, ssn) = ("4111111111111111", "2024-01-31", "078-05-1120");
    let code = "RSSMRA85T10A562S";
    for [first, between, second] in [
        [card, "-", date],
        [date, "-", card],
        [date, ".", "31 Jan 2024"],
        [ssn, "-", "192.168.10.11"],
        ["192.168.10.11", "-", ssn],
        ["jane@example.com", "", code],
        [code, "", "ghp_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2"],
        ["DE89370400440532013000", "", "eyJhbGciOi.eyJzdWIi.abc_d"],
    ] {
        let text = [first, between, second].concat();
        let (mut expected, mut found) = ([first, second], found(&["all"], &text));
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected, "{text}");
    }
    assert!(found(&["all"], &format!("{ssn}-{ssn}, A1B{card}, 1.2.3.4.5")).is_empty());
}

/// Published examples, each with its place.
#[test]
fn published_examples_are_found() {
    let cases = [
        (
            "CREDIT_CARD",
            "4111 1111 1111 1111 378282246310005 5555-5555-5555-4444 6011111111111117",
            4,
        ),
        (
            "IBAN_CODE",
            "DE89 3704 0044 0532 0130 00 IS MINE, GB29NWBK60161331926819; MT84MALT011000012345MTLCAST001S",
            3,
        ),
        (
            "EMAIL_ADDRESS",
            "Write to ann.lee+x@mail.example.org. José: josé@exämple.com, 请联系a@b.cn谢谢",
            3,
        ),
        (
            "URL",
            "See https://example.org/a_(b)?c=d, (www.example.org) and ftp://h/x.",
            3,
        ),
        (
            "IP_ADDRESS",
            "10.0.0.1:80, 2001:db8::8a2e:370:7334, ::ffff:192.0.2.1; std::io, 1.2.3.4.5 and 300.1.1.1",
            3,
        ),
        (
            "MAC_ADDRESS",
            "00:1B:44:11:3A:B7 and 00-1b-44-11-3a-b7, not 00:11:22:33:44",
            2,
        ),
        (
            "PHONE_NUMBER",
            "+44 20 7946 0958, (212) 555-0123, +1-202-555-0143 and +999 1234567",
            3,
        ),
        (
            "DATE_TIME",
            "2024-02-29T10:00:00Z, 31.12.1999, 4 July 1976, July 4th, 1976; 2023-02-29, 99/99/2000",
            4,
        ),
        (
            "US_SSN",
            "123-45-6789, not 666-45-6789, 123-00-6789 or 123-45-0000",
            1,
        ),
        ("US_ITIN", "912-70-1234, not 912-69-1234", 1),
        ("US_NPI", "1234567893", 1),
        ("US_BANK_ROUTING", "021000021 and 122105155", 2),
        ("UK_NHS", "943 476 5919", 1),
        ("UK_NINO", "AB 12 34 56 C, not BG123456C or DA123456A", 1),
        ("ES_NIF", "12345678Z, X1234567L", 2),
        ("IT_FISCAL_CODE", "RSSMRA85T10A562S", 1),
        (
            "PL_PESEL",
            "44051401359 and 00222901352, not 00022901356, 44023001356 or 99913101359",
            2,
        ),
        ("DE_TAX_ID", "86095742719 and 47 036 892 816", 2),
        ("FR_NIR", "2 55 08 14 168 025 38", 1),
        ("NL_BSN", "111222333", 1),
        (
            "SE_PERSONNUMMER",
            "811218-9876, 19811218-9876, 0002291235 and 8102881235, not 190002291235, 8102311233 or 8102911230",
            4,
        ),
        ("FI_HETU", "131052-308T", 1),
        ("CH_AHV", "756.9217.0769.85", 1),
        ("AWS_ACCESS_KEY", "AKIAIOSFODNN7EXAMPLE", 1),
        ("JWT", "eyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UifQ.", 1),
    ];
    for (name, text, count) in cases {
        assert_eq!(
            found(&[name], text).len(),
            count,
            "{name}: {:?}",
            found(&[name], text)
        );
    }
    let tokens = [
        format!("ghp_{}", "a1".repeat(18)),
        format!("hf_{}", "aB".repeat(17)),
        format!("sk-ant-api03-{}", "a-".repeat(20)) + "b",
        format!("xoxb-{}", "1234567890-abc"),
        format!("sk_live_{}", "a1".repeat(12)),
        format!("AIza{}", "a_-1B".repeat(7)),
        format!(
            "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
            "MIIE".repeat(99)
        ),
    ];
    for token in tokens {
        let text = format!("key={token};");
        let found = Patterns::all().matches(&text);
        assert_eq!(&text[found[0].range.clone()], token);
    }
    // Every expression compiles, and every rule has a source.
    for pattern in PATTERNS.iter() {
        assert!(
            pattern.compiled().is_some() && !pattern.source.is_empty(),
            "{}",
            pattern.name
        );
    }
    let error = Patterns::new(&["all", "EMAIL"]).unwrap_err().to_string();
    assert!(
        error.starts_with("unknown pattern `EMAIL`; choose `all`, `CREDIT_CARD`,"),
        "{error}"
    );
}

fn entity(text: &str, range: Range<usize>, label: &str) -> Entity {
    let character = |byte: usize| text[..byte].chars().count();
    Entity {
        label: EntityLabel::Group {
            entity_group: label.into(),
        },
        score: 0.5,
        word: text[range.clone()].into(),
        start: character(range.start),
        end: character(range.end),
    }
}

fn redaction(replacement: Replacement) -> Redaction {
    Redaction {
        patterns: Patterns::all(),
        replacement: Some(replacement),
        ..Redaction::default()
    }
}

/// A text with the model's entities, given by what they cover.
fn redact(
    redaction: &Redaction,
    text: &str,
    names: &[(&str, &str)],
) -> (String, Vec<String>, Mapping) {
    let place = |part: &str| {
        text.find(part)
            .map(|start| start..start + part.len())
            .unwrap()
    };
    let entities: Vec<Entity> = names
        .iter()
        .map(|(part, label)| entity(text, place(part), label))
        .collect();
    let found = redaction
        .begin()
        .unwrap()
        .text(text, &entities, entities.clone());
    let TextEntities::Redacted {
        text: redacted,
        entities,
        mapping,
    } = found.unwrap()
    else {
        panic!("not redacted")
    };
    let of = |entity: &Entity| {
        let word: String = text
            .chars()
            .skip(entity.start)
            .take(entity.end - entity.start)
            .collect();
        assert_eq!(word, entity.word);
        format!("{}={word}", entity.label())
    };
    (
        redacted,
        entities.iter().map(of).collect(),
        mapping.unwrap_or_default(),
    )
}

fn key() -> Key {
    Key::from_hex(&"0f".repeat(32)).unwrap()
}

#[test]
fn a_pattern_wins_over_an_entity_that_crosses_it() {
    let numbered = redaction(Replacement::Number);
    let text = "Ann <ann@x.org>, Bob";
    let names = [("Ann <ann@x", "PER"), ("Bob", "PER")];
    let (redacted, entities, mapping) = redact(&numbered, text, &names);
    assert_eq!(redacted, "[PER_1] <[EMAIL_ADDRESS_1]>, [PER_2]");
    assert_eq!(entities, ["EMAIL_ADDRESS=ann@x.org", "PER=Bob"]);
    assert_eq!(
        restore(&redacted, &mapping, None, usize::MAX).unwrap().text,
        text
    );
    // The same original has the same number, and an address in a URL is a part of it.
    let text = "Ann, Bob, Ann: https://x.org/a@b.org 10.0.0.1";
    let names = [("Ann", "PER"), ("Bob", "PER")];
    let (redacted, entities, _) = redact(&numbered, text, &names);
    assert_eq!(redacted, "[PER_1], [PER_2], Ann: [URL_1] [IP_ADDRESS_1]");
    assert_eq!(entities.len(), 4);
    // Grapheme clusters stay whole.
    let (redacted, _, _) = redact(&numbered, "a 10.0.0.1\u{301} b", &[]);
    assert_eq!(redacted, "a [IP_ADDRESS_1] b");
    let (redacted, ..) = redact(
        &redaction(Replacement::Label),
        "[PER_1] Ann a@b.org",
        &[("Ann", "PER")],
    );
    assert_eq!(redacted, "[PER_1] [PER] [EMAIL_ADDRESS]");
}

#[test]
fn placeholders_that_stood_in_the_text_are_escaped() {
    let text = "[PER_1] met Ann and [X:AAAAAAAAAAAAAAAAAAAAAAAA].";
    for replacement in [
        Replacement::Number,
        Replacement::Hash(key()),
        Replacement::Encrypt(key()),
    ] {
        let (redacted, _, mapping) = redact(&redaction(replacement), text, &[("Ann", "PER")]);
        assert!(!redacted.contains("[PER_1] met"), "{redacted}");
        let restored = restore(&redacted, &mapping, Some(&key()), usize::MAX).unwrap();
        assert_eq!(
            (restored.text.as_str(), restored.restored, restored.unknown),
            (text, 3, 0)
        );
    }
}

#[test]
fn placeholders_are_restored_in_other_texts() {
    let (_, _, mapping) = redact(
        &redaction(Replacement::Number),
        "Ann, Bob",
        &[("Ann", "PER"), ("Bob", "PER")],
    );
    let answer = "Dear [PER_2] and [PER_1]! [PER_3] and [ORG#00112233445566778899aabbccddeeff] are unknown, [1] and [a b] none.";
    let restored = restore(answer, &mapping, None, usize::MAX).unwrap();
    // Two placeholders of 7 bytes become names of 3.
    let exact = answer.len() - 8;
    assert!(restore(answer, &mapping, None, exact).is_ok());
    let error = restore(answer, &mapping, None, exact - 1).unwrap_err();
    insta::assert_snapshot!(error, @"the texts would be too long with their originals; send fewer or shorter ones");
    assert_eq!(
        restored.text,
        answer.replace("[PER_2]", "Bob").replace("[PER_1]", "Ann")
    );
    assert_eq!((restored.restored, restored.unknown), (2, 2));
    // Numbers continue, also in another text.
    let continued = Redaction {
        known: mapping,
        scope: NumberScope::Request,
        ..redaction(Replacement::Number)
    };
    let (redacted, ..) = redact(&continued, "Eve, Bob", &[("Eve", "PER"), ("Bob", "PER")]);
    assert_eq!(redacted, "[PER_3], [PER_2]");
    let mapping = Mapping([("x".to_owned(), "secret".to_owned())].into());
    let error = Memory::continued(&mapping).err().unwrap().to_string();
    assert_eq!(
        error,
        "the mapping's name in place 1 is not a placeholder such as `[PERSON_1]`"
    );
    let refused = |text: &str| {
        serde_json::from_str::<Mapping>(text)
            .unwrap_err()
            .to_string()
    };
    insta::assert_snapshot!(refused(r#"{"[A_1]": "x", "[A_1]": "y"}"#), @"expected each placeholder once, but found an earlier one in place 2 at line 1 column 28");
    insta::assert_snapshot!(refused(r#"{"[A_1]": "x", "y": 1}"#), @"expected a text for each placeholder, but found another value in place 2 at line 1 column 22");
    assert_eq!(
        format!("{mapping:?} {:?}", key()),
        "Mapping(1 placeholders) Key(…)"
    );
}

#[test]
fn texts_are_numbered_after_others() {
    let mapping = |pairs: &[(&str, &str)]| {
        let pairs = pairs
            .iter()
            .map(|(name, text)| ((*name).into(), (*text).into()));
        Mapping(pairs.collect())
    };
    let mut memory = Memory::default();
    let first = mapping(&[("[PER_1]", "Ann"), ("[PER_2]", "Bob"), ("[LOC_1]", "Ann")]);
    let second = mapping(&[("[PER_1]", "Bob"), ("[PER_2]", "Cleo")]);
    let mut numbered = |text: &str, own: &Mapping, max_bytes| {
        memory
            .renumber(text, own, max_bytes)
            .map_err(|error| error.chain())
    };
    let text = "[PER_2] and [PER_1] in [LOC_1], [PER_2], [PER_9]";
    let expected = "[PER_1] and [PER_2] in [LOC_1], [PER_1], [PER_9]";
    assert_eq!(numbered(text, &first, 99).unwrap(), expected);
    // Nothing new is taken beyond the limit.
    assert_eq!(numbered("[PER_1]", &second, 29).unwrap(), "[PER_1]");
    insta::assert_snapshot!(numbered("[PER_2]", &second, 29).unwrap_err(), @"the texts have more than 29 bytes of different originals; use the style `hash` or `encrypt`");
    assert_eq!(numbered("[PER_2]", &second, 30).unwrap(), "[PER_3]");
}

#[test]
fn keys_are_checked_and_bind_placeholders() {
    let refused = |text: &str| Key::from_hex(text).unwrap_err().to_string();
    insta::assert_snapshot!(refused("secret"), @"expected a key of 32 bytes, as 64 hexadecimal digits, but found 6 characters; make one with `openssl rand -hex 32`");
    insta::assert_snapshot!(refused(&"xy".repeat(32)), @"expected a key of 32 bytes, as 64 hexadecimal digits, but found other characters; make one with `openssl rand -hex 32`");
    insta::assert_snapshot!(serde_json::from_str::<Key>("\"secret\"").unwrap_err(), @"expected a key of 32 bytes, as 64 hexadecimal digits, but found 6 characters; make one with `openssl rand -hex 32`");
    insta::assert_snapshot!(Replacement::new(Style::Hash, None).unwrap_err(), @"the styles `hash` and `encrypt` need a key, but there is none; make one with `openssl rand -hex 32`");
    insta::assert_snapshot!(Replacement::new(Style::Number, Some(key())).unwrap_err(), @"a key has an effect only on the styles `hash` and `encrypt`; omit it, or choose one of them");
    let sealed = key().seal("PER", "Ann").unwrap();
    assert_eq!(key().open("PER", &sealed).as_deref(), Some("Ann"));
    let other = Key::from_hex(&"0e".repeat(32)).unwrap();
    assert_eq!(
        (key().open("ORG", &sealed), other.open("PER", &sealed)),
        (None, None)
    );
    let restored = restore(
        &format!("[PER:{sealed}]"),
        &Mapping::default(),
        Some(&other),
        usize::MAX,
    )
    .unwrap();
    assert_eq!((restored.restored, restored.unknown), (0, 1));
    // HMAC-SHA-256, by Python's `hmac`.
    assert_eq!(key().hash("PER", "Ann"), "f042c7b2d9df9f16738abe710030f032");
}

/// 1,000 texts in 12 scripts, with places that begin and end anywhere.
#[test]
fn redacted_texts_are_restored() {
    const WORDS: [&str; 14] = [
        "Ann Lee, a@b.org",
        "Анна Ли живёт",
        "Άννα Λη",
        "王明在北京工作。",
        "サクラさんは",
        "김민수는 서울에",
        "מרים כהן",
        "فاطمة الزهراء",
        "सीता शर्मा",
        "สมชายอยู่กรุงเทพ",
        "Նարե",
        "ნინო",
        "[PER_1] [X_2",
        "👩\u{200d}👧 e\u{301}\r\n4111111111111111",
    ];
    let mut random = Rng::with_seed(12);
    let mut count = 0;
    for _ in 0..1000 {
        let mut text = String::new();
        for _ in 0..random.usize(1..8) {
            text.push_str(WORDS[random.usize(..WORDS.len())]);
            text.push_str(["", " ", "[", "]", "_1]", ". "][random.usize(..6)]);
        }
        let characters = text.chars().count();
        let mut entities: Vec<Entity> = Vec::new();
        for _ in 0..random.usize(..6) {
            let start = random.usize(..characters);
            let end = random.usize(start..=characters).min(start + 12);
            let mut found = entity(
                &text,
                0..0,
                ["PER", "a [b]\n", "LOC", ""][random.usize(..4)],
            );
            (found.start, found.end) = (start, end);
            entities.push(found);
        }
        for replacement in [
            Replacement::Number,
            Replacement::Hash(key()),
            Replacement::Encrypt(key()),
        ] {
            for scope in [NumberScope::Text, NumberScope::Request] {
                let redaction = Redaction {
                    scope,
                    ..redaction(replacement.clone())
                };
                let mut redactor = redaction.begin().unwrap();
                let found = redactor.text(&text, &entities, entities.clone()).unwrap();
                let TextEntities::Redacted {
                    text: redacted,
                    mapping,
                    ..
                } = found
                else {
                    panic!("not redacted")
                };
                let restored = restore(
                    &redacted,
                    &mapping.unwrap_or_default(),
                    Some(&key()),
                    usize::MAX,
                )
                .unwrap();
                assert_eq!(restored.text, text, "{redacted}");
                assert_eq!(restored.unknown, 0, "{redacted}");
                count += restored.restored;
            }
        }
    }
    assert!(count > 10_000, "{count}");
}
