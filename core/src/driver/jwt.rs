//! When a JWT ends (wire protocol 7). The claim times the renewal only, and is never verified.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// How long the token is valid, by this machine's date; `None` for what is no JWT, or has no `exp`.
pub(super) fn expires_in(token: &str) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(ends(token)?.saturating_sub(now))
}

/// The `exp` claim, since the epoch.
fn ends(token: &str) -> Option<Duration> {
    let claims = token.strip_prefix("eyJ")?.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    Duration::try_from_secs_f64(claims.get("exp")?.as_f64()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exp_claim() {
        let token = |claims: &str| format!("eyJhbGciOiJub25lIn0.{}.x", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(ends(&token(r#"{"exp":1700000000}"#)), Some(Duration::from_secs(1_700_000_000)));
        assert_eq!(expires_in(&token(r#"{"exp":1}"#)), Some(Duration::ZERO));
        for other in ["opaque", "eyJ", "eyJ.!.x", &token("{}"), &token(r#"{"exp":-1}"#), &token("[")] {
            assert_eq!(ends(other), None, "{other}");
        }
    }
}
