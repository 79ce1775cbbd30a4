//! Subscribes, publishes and shows what arrives: `cargo run -p nolag-core --example quickstart`, beside a broker.
//!
//! `NOLAG_URL` says where the broker is, `NOLAG_TOKEN` who we are.

use nolag_core::Client;

const TOPIC: &str = "demo/general/messages";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), nolag_core::Error> {
    let token = std::env::var("NOLAG_TOKEN").unwrap_or_else(|_| "dev-token-alice".into());
    let url = std::env::var("NOLAG_URL").unwrap_or_else(|_| "ws://localhost:8080".into());
    let client = Client::builder(token).url(url).build()?;
    client.connect().await?;
    let mut messages = client.subscribe(TOPIC).await?;
    let receipt = client.publish(TOPIC, "hello").await?;
    println!("published: {:?}", receipt.outcome);
    if let Some(message) = messages.next().await {
        println!("received: {}", message?.decode::<String>()?);
    }
    client.close().await
}
