//! The `trace` of a publish: a W3C `traceparent` (features 1).

/// The longest that is taken, in bytes: one of version 00 has 55, and later versions may add to it.
pub const MAX_TRACE: usize = 128;

/// Whether text is a `traceparent` (W3C Trace Context, 3.2): version, trace, parent and flags in lower-case hex digits. What
/// versions after 00 add is taken as it is.
pub fn is_traceparent(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = text.splitn(5, '-');
    let known = [2, 32, 16, 2].map(|len| parts.next().filter(|part| part.len() == len && is_hex(part)));
    let [Some(version), Some(trace), Some(parent), Some(_)] = known else { return false };
    let is_nothing = |id: &str| id.bytes().all(|byte| byte == b'0');
    let fits = if version == "00" { parts.next().is_none() } else { text.len() <= MAX_TRACE };
    version != "ff" && fits && !is_nothing(trace) && !is_nothing(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparents() {
        let of = |version, trace, parent, rest| is_traceparent(&format!("{version}-{trace}-{parent}-{rest}"));
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        assert!(of("00", trace, parent, "01"));
        assert!(of("01", trace, parent, "01-what comes later"));
        let none = "0".repeat(32);
        for (version, trace, parent, rest) in [
            ("ff", trace, parent, "01"),
            ("0", trace, parent, "01"),
            ("00", &none, parent, "01"),
            ("00", trace, &none[..16], "01"),
            ("00", &trace.to_uppercase(), parent, "01"),
            ("00", &trace[1..], parent, "01"),
            ("00", trace, "00f067aa0ba902bé", "01"),
            ("00", trace, parent, "01-more"),
            ("00", trace, parent, "1"),
            ("01", trace, parent, "012"),
            ("01", trace, parent, &format!("01-{}", "x".repeat(MAX_TRACE))),
        ] {
            assert!(!of(version, trace, parent, rest), "{version}-{trace}-{parent}-{rest}");
        }
        assert!(!is_traceparent(""));
    }
}
