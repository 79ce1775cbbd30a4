//! The one thing the broker reads from a JWT: when it expires. Whether it is genuine its issuer decides.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The `exp` claim in seconds since 1970; none for an opaque token (wire protocol 7).
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturating, and the date is not negative
pub(super) fn expiry(token: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    if !token.starts_with("eyJ") {
        return None;
    }
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?.trim_end_matches('=')).ok()?;
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    Some(claims.exp as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_jwt_expires() {
        let token = |claims: &str| format!("eyJhbGciOiJub25lIn0.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        assert_eq!(expiry(&token("{\"sub\":\"a\",\"exp\":1780000000}")), Some(1_780_000_000));
        assert_eq!(expiry(&token("{\"exp\":1780000000.5}")), Some(1_780_000_000));
        assert_eq!(expiry(&token("{\"sub\":\"a\"}")), None);
        assert_eq!(expiry("eyJ"), None);
        assert_eq!(expiry("eyJ.###.x"), None);
        assert_eq!(expiry("opaque"), None);
    }
}
