//! Personal data and secrets with a written form: found by an expression and, where there are check digits, by those.

use std::{
    cmp::Ordering,
    ops::Range,
    sync::{LazyLock, OnceLock},
};

use regex::Regex;

use super::{
    checks,
    plain::{Plain, Separators},
};
use kivu_base::{
    error::{Error, Result},
    names::choice,
};

/// A pattern to find, and the publication of its rule.
#[derive(Debug)]
pub struct Pattern {
    /// Its label in results.
    pub name: &'static str,
    expression: &'static str,
    is_valid: fn(&str) -> bool,
    /// The publication with its form and check digits.
    pub source: &'static str,
}

const fn pattern(
    name: &'static str,
    expression: &'static str,
    is_valid: fn(&str) -> bool,
    source: &'static str,
) -> Pattern {
    Pattern {
        name,
        expression,
        is_valid,
        source,
    }
}

/// Letters of scripts with spaces between words, and digits: a name in an address ends where another script begins.
const EMAIL: &str = r#"(?:"[^"\r\n@]+"|[[\p{L}\p{M}\p{N}--[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]_][[\p{L}\p{M}\p{N}--[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]].!#$%&'*+/=?^_`{|}~-]*)@(?:[\p{L}\p{M}\p{N}-]+\.)+[[\p{L}\p{M}--[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]]{2,}[0-9]*"#;
/// JSON may have a backslash before each slash, and another URL has their numbers.
const URL: &str = r#"(?:(?i-u:[a-z0-9][a-z0-9+.-]+)(?::(?:\\?/){2}|(?i-u:%3a%2f%2f))|(?i-u:www)\.)[^\s<>"。、，）」』】]*[^\s<>"。、，）」』】.,;:!?')\]}]"#;
const IP: &str = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{1,4})?";
const CARD: &str = r"[2-6][0-9]{3}(?:[ ./_-]?[0-9]{4}){2}[ ./_-]?[0-9]{1,4}(?:[ ./_-]?[0-9]{1,3})?|3[0-9]{3}[ ./_-][0-9]{6}[ ./_-][0-9]{4,5}";
/// A space behind the country needs capitals, since `in 2024` would be tried in every text.
const IBAN: &str = r"(?i-u)(?:[A-Z]{2}|(?-i:[A-Z]{2})[ .-])[0-9]{2}(?:[ ./_-]?[A-Z0-9]){11,29}";
const PHONE: &str = r"(?i-u)(?:(?:\+|00)[1-9][0-9]{0,2}(?:[ .()/-]{0,2}[0-9]){6,13}|(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4})(?:,? ?(?:x|ext\.?|extension) ?[0-9]{1,6})?";
const DATE: &str = r"(?i-u)[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?|[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{4}|[0-9]{1,2}(?:st|nd|rd|th)?(?:[-/. ]|\. | of )(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}(?:[-/]|\.?,? )[0-9]{4}|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}(?:[-/]|\.? )[0-9]{1,2}(?:st|nd|rd|th)?(?:[-/]|,? )[0-9]{4}";
const IT_FISCAL_CODE: &str =
    r"(?i-u)[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPR-T][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]";
/// A key that is cut off ends where its lines do.
const PEM: &str = r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:(?:[^-]|-[^-])*-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|(?:[\s>\\]*[A-Za-z0-9+/=]{16,})+)";

/// All patterns: name, expression, check and source. Of equally long matches in the same place, the first one is taken.
#[rustfmt::skip]
pub static PATTERNS: [Pattern; 41] = [
    pattern("CREDIT_CARD", CARD, checks::card, "ISO/IEC 7812-1"),
    pattern("IBAN_CODE", IBAN, checks::iban, "ISO 13616, SWIFT IBAN registry"),
    pattern("EMAIL_ADDRESS", EMAIL, checks::any, "RFC 5322, RFC 6531"),
    pattern("URL", URL, checks::any, "RFC 3986"),
    pattern("IP_ADDRESS", IP, checks::ip, "RFC 791, RFC 4291"),
    pattern("MAC_ADDRESS", r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}", checks::any, "IEEE 802"),
    pattern(PHONE_NUMBER, PHONE, checks::phone, "ITU-T E.164, North American Numbering Plan"),
    pattern("DATE_TIME", DATE, checks::date, "ISO 8601, and common forms in English"),
    pattern("US_SSN", r"[0-9]{3}[ .-][0-9]{2}[ .-][0-9]{4}", checks::us_ssn, "Social Security Administration, POMS RM 10201.035"),
    pattern("US_ITIN", r"9[0-9]{2}[ .-][0-9]{2}[ .-][0-9]{4}", checks::us_itin, "Internal Revenue Service, Publication 1915"),
    pattern("US_NPI", r"[12][0-9]{9}", checks::us_npi, "45 CFR 162.406"),
    pattern("US_BANK_ROUTING", r"[0-9]{9}", checks::us_routing, "American Bankers Association, ANSI X9.100-160"),
    pattern("UK_NHS", r"[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{4}", checks::uk_nhs, "NHS Data Dictionary, NHS number"),
    pattern("UK_NINO", r"(?i-u)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z][ -]?[0-9]{2}[ -]?[0-9]{2}[ -]?[0-9]{2}[ -]?[A-D]", checks::uk_nino, "HMRC, National Insurance Manual NIM39110"),
    pattern("ES_NIF", r"(?i-u)(?:[0-9]{2}\.?[0-9]{3}\.?[0-9]{3}|[XYZ]-?[0-9]\.?[0-9]{3}\.?[0-9]{3})-?[A-Z]", checks::es_nif, "Real Decreto 1553/2005, Real Decreto 557/2011"),
    pattern("IT_FISCAL_CODE", IT_FISCAL_CODE, checks::it_fiscal_code, "Decreto Ministeriale 23 dicembre 1976"),
    pattern("PL_PESEL", r"[0-9]{11}", checks::pl_pesel, "Ustawa o ewidencji ludności, art. 15"),
    pattern("DE_TAX_ID", r"[1-9][0-9] ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}", checks::de_tax_id, "Abgabenordnung § 139b, ISO 7064"),
    pattern("FR_NIR", r"[12] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}", checks::fr_nir, "INSEE, numéro d'inscription au répertoire"),
    pattern("NL_BSN", r"[0-9]{9}|[0-9]{4}[ .][0-9]{2}[ .][0-9]{3}|[0-9]{3}[ .][0-9]{3}[ .][0-9]{3}", checks::nl_bsn, "Wet algemene bepalingen burgerservicenummer"),
    pattern("SE_PERSONNUMMER", r"(?:[0-9]{2})?[0-9]{6}[-+]?[0-9]{4}", checks::se_personnummer, "Skatteverket, SKV 704"),
    pattern("FI_HETU", r"(?i-u)[0-9]{6}[-+A-FU-Y][0-9]{3}[0-9A-FHJ-NPR-Y]", checks::fi_hetu, "Digital and Population Data Services Agency"),
    pattern("NO_NATIONAL_ID", r"[0-9]{6} ?[0-9]{5}", checks::no_national_id, "Folkeregisterforskriften § 2-2-1"),
    pattern("CH_AHV", r"756[ .]?[0-9]{4}[ .]?[0-9]{4}[ .]?[0-9]{2}", checks::ch_ahv, "Bundesgesetz über die AHV, Art. 50c"),
    pattern("AWS_ACCESS_KEY", r"(?:AKIA|ASIA)[A-Z2-7]{16}", checks::any, "AWS IAM, unique identifiers"),
    pattern("ANTHROPIC_KEY", r"sk-ant-[A-Za-z0-9_-]{20,}", checks::any, "GitHub secret scanning patterns"),
    pattern("DATABRICKS_TOKEN", r"dapi[0-9a-f]{32}", checks::any, "GitHub secret scanning patterns"),
    pattern("GITHUB_TOKEN", r"gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{82}", checks::any, "GitHub, token formats"),
    pattern("GITLAB_TOKEN", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas)-[A-Za-z0-9_-]{20,}", checks::any, "GitLab, token prefixes"),
    pattern("GOOGLE_API_KEY", r"AIza[A-Za-z0-9_-]{35}", checks::any, "GitHub secret scanning patterns"),
    pattern("HUGGING_FACE_TOKEN", r"hf_[A-Za-z0-9]{30,}", checks::any, "Hugging Face, user access tokens"),
    pattern("JWT", r"eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", checks::any, "RFC 7519"),
    pattern("NPM_TOKEN", r"npm_[A-Za-z0-9]{36}", checks::any, "GitHub, npm token format"),
    pattern("OPENAI_KEY", r"sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}", checks::any, "GitHub secret scanning patterns"),
    pattern("PRIVATE_KEY", PEM, checks::any, "RFC 7468"),
    pattern("PYPI_TOKEN", r"pypi-AgE[A-Za-z0-9_-]{50,}", checks::any, "PyPI, API tokens"),
    pattern("SENDGRID_KEY", r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}", checks::any, "GitHub secret scanning patterns"),
    pattern("SHOPIFY_TOKEN", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}", checks::any, "Shopify, token formats"),
    pattern("SLACK_TOKEN", r"xox[abceoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}", checks::any, "Slack, token types"),
    pattern("STRIPE_KEY", r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}", checks::any, "Stripe, API keys"),
    pattern("TWILIO_KEY", r"SK[0-9a-f]{32}", checks::any, "Twilio, API keys"),
];

static COMPILED: LazyLock<Vec<OnceLock<Option<Regex>>>> =
    LazyLock::new(|| PATTERNS.iter().map(|_| OnceLock::new()).collect());

/// Selected patterns: indexes in [`PATTERNS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(Vec<usize>);

/// A pattern's place in a text, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Its bytes.
    pub range: Range<usize>,
    /// The pattern's name.
    pub name: &'static str,
}

/// Selects all patterns.
const ALL: &str = "all";
const PHONE_NUMBER: &str = "PHONE_NUMBER";
/// International numbers with fewer digits may continue in the next line.
const WHOLE_PHONE_NUMBER: usize = 11;
/// Numbers that may touch a word, as in `Card4111111111111111`: hardly a product number has their form and check digits.
pub(super) const BESIDE_WORDS: [&str; 5] = [
    "CREDIT_CARD",
    "IBAN_CODE",
    "IT_FISCAL_CODE",
    "FR_NIR",
    "CH_AHV",
];
/// Letters of such a word.
const MAX_WORD: usize = 32;
/// A longer candidate that is refused is skipped as a whole, so that the search stays linear.
const MAX_RETRIED: usize = 256;

impl Patterns {
    /// All patterns.
    pub fn all() -> Self {
        Self((0..PATTERNS.len()).collect())
    }

    /// The patterns with these names; `all` selects all.
    ///
    /// # Errors
    /// There is no such pattern.
    pub fn new<T: AsRef<str>>(names: &[T]) -> Result<Self> {
        let mut places = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            if name == ALL {
                places.extend(0..PATTERNS.len());
                continue;
            }
            let place = PATTERNS.iter().position(|pattern| pattern.name == name);
            places.push(place.ok_or_else(|| {
                let known = PATTERNS.iter().map(|pattern| pattern.name.to_owned());
                let known: Vec<_> = [ALL.to_owned()].into_iter().chain(known).collect();
                Error::invalid(format!("unknown pattern `{name}`"))
                    .with_hint(format!("choose {}", choice(&known)))
            })?);
        }
        places.sort_unstable();
        places.dedup();
        Ok(Self(places))
    }

    /// Whether none is selected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All matches, also of patterns that overlap: the longest first, and the first in the table among equals.
    ///
    /// What seemed to continue a match, as the date in `2024-01-31-4111111111111111`, is looked for once more without it.
    pub fn matches(&self, text: &str) -> Vec<Match> {
        let mut found = self.search(text);
        if found.iter().any(|found| has_neighbour(text, &found.range)) {
            let mut rest = text.to_owned();
            for Match { range, .. } in &found {
                rest.replace_range(range.clone(), &"\n".repeat(range.len()));
            }
            found.append(&mut self.search(&rest));
        }
        found.sort_by_key(|found| std::cmp::Reverse(found.range.len()));
        found
    }

    /// The matches that stand for themselves.
    fn search(&self, text: &str) -> Vec<Match> {
        let mut found: Vec<Match> = Vec::new();
        let plain = Plain::of(text, Separators::AsWritten);
        let joined = Plain::of(text, Separators::Joined);
        let is_joined = joined.text != plain.text;
        for place in &self.0 {
            let pattern = &PATTERNS[*place];
            // All expressions are compiled in a test.
            let compiled = COMPILED[*place].get_or_init(|| Regex::new(pattern.expression).ok());
            let Some(expression) = compiled else { continue };
            let mut written = pattern.find_all(expression, &plain);
            if is_joined && pattern.has_separators() {
                let mut others = pattern.find_all(expression, &joined);
                written.retain(|part| {
                    let own = &text[part.range.clone()];
                    let is_part = |whole: &Match| match whole.range.start.cmp(&part.range.start) {
                        Ordering::Equal => {
                            whole.range.end > part.range.end && pattern.may_continue(own)
                        }
                        // A form's space is no country code's plus.
                        Ordering::Less => own.starts_with('+'),
                        Ordering::Greater => false,
                    };
                    !overlapping(&others, part).is_some_and(is_part)
                });
                others.retain(|other| overlapping(&written, other).is_none());
                found.append(&mut others);
            }
            found.append(&mut written);
        }
        found
    }
}

/// Whether a letter or digit is next to a match, or behind a hyphen or point next to it.
fn has_neighbour(text: &str, range: &Range<usize>) -> bool {
    is_neighbour(text[..range.start].chars().rev()) || is_neighbour(text[range.end..].chars())
}

fn is_neighbour(mut next: impl Iterator<Item = char>) -> bool {
    let first = match next.next() {
        Some('-' | '.') => next.next(),
        first => first,
    };
    first.is_some_and(|c| c.is_numeric() || is_joined(c))
}

/// The match that overlaps `other` among matches in the text's order.
fn overlapping<'a>(matches: &'a [Match], other: &Match) -> Option<&'a Match> {
    let next = matches.partition_point(|found| found.range.end <= other.range.start);
    matches
        .get(next)
        .filter(|found| found.range.start < other.range.end)
}

impl Pattern {
    /// Whether the expression is one.
    #[cfg(test)]
    pub fn compiles(&self) -> bool {
        Regex::new(self.expression).is_ok()
    }

    /// Whether a text in the expression's form passes the check.
    #[cfg(test)]
    pub fn accepts(&self, text: &str) -> bool {
        (self.is_valid)(text)
    }

    /// Whether digits may have separators between them, which may be a line's end.
    fn has_separators(&self) -> bool {
        self.expression.contains(' ')
    }

    /// Whether a match may be the part of a number before a line's end, since no check says where it ends.
    fn may_continue(&self, found: &str) -> bool {
        let digits = found.chars().filter(|c| c.is_numeric()).count();
        self.name == PHONE_NUMBER && digits < WHOLE_PHONE_NUMBER
    }

    /// All matches in the text's order, with their places in the original.
    fn find_all(&self, expression: &Regex, plain: &Plain<'_>) -> Vec<Match> {
        let (mut at, text, mut found) = (0, &*plain.text, Vec::new());
        while let Some(candidate) = expression.find_at(text, at) {
            let range = candidate.range();
            if let Some(end) = self.accepted_end(expression, plain, &range) {
                found.push(Match {
                    range: plain.original(&(range.start..end)),
                    name: self.name,
                });
                at = end;
            } else if range.len() > MAX_RETRIED {
                at = range.end;
            } else {
                at = range.start + text[range.start..].chars().next().map_or(1, char::len_utf8);
            }
        }
        found
    }

    /// Where a candidate ends that stands for itself and passes the check; a part at its end may belong to what follows.
    fn accepted_end(
        &self,
        expression: &Regex,
        plain: &Plain<'_>,
        range: &Range<usize>,
    ) -> Option<usize> {
        let text = &*plain.text;
        let (before, candidate) = (&text[..range.start], &text[range.clone()]);
        if self.continues(before.chars().rev(), candidate, candidate.chars().next())
            && !plain.is_divided(range.start)
            && !ends_in_escape(before)
        {
            return None;
        }
        let shortest = match candidate.len() {
            ..=MAX_RETRIED => 1,
            length => length,
        };
        let is_accepted = |length: &usize| {
            text.is_char_boundary(range.start + length) && {
                let (part, rest) = text[range.start..].split_at(*length);
                (!self.continues(rest.chars(), part, part.chars().next_back())
                    || plain.is_divided(range.start + length))
                    && (*length == candidate.len()
                        || expression
                            .find(part)
                            .is_some_and(|found| found.len() == *length))
                    && (self.is_valid)(&part.to_ascii_uppercase())
            }
        };
        let length = (shortest..=candidate.len()).rev().find(is_accepted)?;
        Some(range.start + length)
    }

    /// Whether a match is a part of the word or number beside it, which may be a word of letters for some patterns.
    fn continues(
        &self,
        next: impl Iterator<Item = char> + Clone,
        found: &str,
        edge: Option<char>,
    ) -> bool {
        continues(next.clone(), found, edge)
            && !(BESIDE_WORDS.contains(&self.name) && is_word(next))
    }
}

/// Whether a text ends in a character that is no letter or digit, as URLs or mails write it: `%22`, `%2522` or `=3D`.
fn ends_in_escape(text: &str) -> bool {
    let place = text.len().saturating_sub(2);
    let Some((rest, digits)) = text.split_at_checked(place) else {
        return false;
    };
    let is_number = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let code = u8::from_str_radix(digits, 16).unwrap_or(b'0');
    // `id=20` is hardly a mail's space.
    let is_of_mail = || rest.ends_with('=') && !digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number
        && !code.is_ascii_alphanumeric()
        && (rest.trim_end_matches("25").ends_with('%') || is_of_mail())
}

/// Whether characters begin with a word of letters only.
fn is_word(characters: impl Iterator<Item = char>) -> bool {
    let word: Vec<char> = characters
        .take(MAX_WORD + 1)
        .take_while(|c| is_joined(*c))
        .collect();
    word.len() <= MAX_WORD && word.iter().all(|c| c.is_alphabetic())
}

/// Whether the characters next to a match belong to the same word or number: a letter or digit, or after a digit at the
/// match's `edge` a hyphen or point with another digit, unless other separators divide the match's digits. In scripts
/// without spaces, letters are no sign of that.
fn continues(mut next: impl Iterator<Item = char>, found: &str, edge: Option<char>) -> bool {
    if !edge.is_some_and(char::is_alphanumeric) {
        return false;
    }
    match next.next() {
        Some(separator @ ('-' | '.')) => {
            edge.is_some_and(|edge| edge.is_ascii_digit())
                && next.next().is_some_and(|next| next.is_ascii_digit())
                && (found.contains(separator) || found.chars().all(char::is_alphanumeric))
        }
        Some(next) => is_joined(next),
        None => false,
    }
}

/// Letters and digits that belong to the word beside them. Digits of other scripts are in ASCII here, and raised or circled
/// ones are marks.
fn is_joined(character: char) -> bool {
    character.is_ascii_digit() || character.is_alphabetic() && !is_unspaced(character)
}

/// Letters of scripts that write no spaces between words, or join particles: Thai, Lao, Myanmar, Khmer, Hangul, kana, Han.
fn is_unspaced(letter: char) -> bool {
    matches!(
        letter,
        '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1100}'..='\u{11ff}' | '\u{1780}'..='\u{17ff}'
            | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7ff}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ffdc}'
            | '\u{20000}'..='\u{3ffff}'
    )
}
