//! Over real sockets: another implementation of ZeroMQ as subscriber and as replay client, and raw bytes from bad peers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use glim_engine::KvEvent;
use prometheus_client::metrics::counter::Counter;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::super::{KvEncoding, KvEventsConfig, KvEventsError, KvPublisher};
use super::stored;
use crate::metrics::KvEventCounters;

/// Nothing here takes long; a fault would take for ever.
const LIMIT: Duration = Duration::from_secs(30);

const TOPIC: &str = "kv@10.0.0.1:8000@glm";

fn config() -> KvEventsConfig {
    KvEventsConfig {
        endpoint: "tcp://*:0".to_owned(),
        replay_endpoint: Some("tcp://127.0.0.1:0".to_owned()),
        topic: TOPIC.to_owned(),
        ..KvEventsConfig::default()
    }
}

fn start(config: &KvEventsConfig) -> KvPublisher {
    KvPublisher::start(config, KvEventCounters::default()).unwrap()
}

/// Where a publisher that listens on all addresses can be reached.
fn reach(endpoint: &str) -> String {
    endpoint.replace('*', "127.0.0.1")
}

fn port(endpoint: &str) -> u16 {
    endpoint.rsplit(':').next().unwrap().parse().unwrap()
}

async fn subscribe(endpoint: &str, topic: &str) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.connect(&reach(endpoint)).await.unwrap();
    socket.subscribe(topic).await.unwrap();
    socket
}

async fn receive(socket: &mut SubSocket) -> (String, u64, Vec<u8>) {
    let message = timeout(LIMIT, socket.recv()).await.unwrap().unwrap();
    let [topic, number, payload] = message.into_vec().try_into().unwrap();
    (
        String::from_utf8(topic.to_vec()).unwrap(),
        u64::from_be_bytes(number.as_ref().try_into().unwrap()),
        payload.to_vec(),
    )
}

/// Publishes until the subscriber has its first message: what was sent before its wish arrived is not for it. Returns the number of that
/// message.
async fn first_number(publisher: &KvPublisher, socket: &mut SubSocket) -> u64 {
    loop {
        publisher.publish(vec![stored()]);
        match timeout(Duration::from_millis(20), receive(socket)).await {
            Ok((_, number, _)) => return number,
            Err(_) => continue,
        }
    }
}

/// Waits for a counter.
async fn reaches(counter: &Counter, at_least: u64) {
    let reached = async {
        while counter.get() < at_least {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LIMIT, reached).await.unwrap();
}

/// All batches from this number on, as `(number, payload)`, and the end mark.
async fn replay(endpoint: &str, first: u64) -> Vec<(u64, Vec<u8>)> {
    let mut socket = DealerSocket::new();
    socket.connect(&reach(endpoint)).await.unwrap();
    let mut request = ZmqMessage::from(first.to_be_bytes().to_vec());
    request.push_front(Default::default());
    socket.send(request).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let message = timeout(LIMIT, socket.recv()).await.unwrap().unwrap();
        let [delimiter, number, payload] = message.into_vec().try_into().unwrap();
        assert!(delimiter.is_empty());
        let number = u64::from_be_bytes(number.as_ref().try_into().unwrap());
        if payload.is_empty() {
            assert_eq!(number, u64::MAX);
            return batches;
        }
        batches.push((number, payload.to_vec()));
    }
}

#[tokio::test]
async fn a_subscriber_gets_every_batch_once_and_in_order() {
    let publisher = start(&config());
    let mut socket = subscribe(&publisher.endpoint(), "kv@").await;
    let first = first_number(&publisher, &mut socket).await;
    for _ in 0..200 {
        publisher.publish(vec![stored(), KvEvent::AllBlocksCleared]);
    }
    for number in first + 1..first + 201 {
        let (topic, found, _) = receive(&mut socket).await;
        assert_eq!((topic.as_str(), found), (TOPIC, number));
    }
}

#[tokio::test]
async fn another_topic_is_not_sent() {
    let publisher = start(&config());
    let mut other = subscribe(&publisher.endpoint(), "kv@10.0.0.2").await;
    let mut socket = subscribe(&publisher.endpoint(), "").await;
    let first = first_number(&publisher, &mut socket).await;
    publisher.publish(vec![stored()]);
    assert_eq!(receive(&mut socket).await.1, first + 1);
    let nothing = timeout(Duration::from_millis(100), receive(&mut other)).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

#[tokio::test]
async fn a_replay_has_all_from_the_number_on_and_the_first_says_cleared() {
    for encoding in [KvEncoding::Maps, KvEncoding::Arrays] {
        const LAST: u64 = 9;
        let counters = KvEventCounters::default();
        let config = KvEventsConfig {
            encoding,
            ..config()
        };
        let publisher = KvPublisher::start(&config, counters.clone()).unwrap();
        for _ in 0..LAST {
            publisher.publish(vec![stored()]);
        }
        reaches(&counters.published, LAST + 1).await;
        let endpoint = publisher.replay_endpoint().unwrap();

        let all = replay(&endpoint, 0).await;
        let numbers: Vec<u64> = all.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (0..=LAST).collect::<Vec<_>>());
        let batch = rmpv::decode::read_value(&mut all[0].1.as_slice()).unwrap();
        let event = &batch[1][0];
        let tag = match encoding {
            KvEncoding::Maps => &event["type"],
            KvEncoding::Arrays => &event[0],
        };
        assert_eq!(tag.as_str(), Some("AllBlocksCleared"));

        assert_eq!(replay(&endpoint, 7).await, all[7..]);
        assert!(replay(&endpoint, LAST + 1).await.is_empty());
    }
}

#[tokio::test]
async fn batches_that_no_longer_fit_are_not_replayed() {
    let counters = KvEventCounters::default();
    let small = KvEventsConfig {
        buffer_batches: 4,
        ..config()
    };
    let publisher = KvPublisher::start(&small, counters.clone()).unwrap();
    for _ in 0..20 {
        publisher.publish(vec![stored()]);
    }
    reaches(&counters.published, 21).await;
    let endpoint = publisher.replay_endpoint().unwrap();
    let numbers: Vec<u64> = replay(&endpoint, 0).await.iter().map(|b| b.0).collect();
    assert_eq!(numbers, [17, 18, 19, 20]);
}

/// A raw peer that has greeted and is a SUB with a wish for everything.
fn raw_subscriber(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut hello = vec![0u8; 64];
    hello[0] = 0xFF;
    hello[9] = 0x7F;
    hello[10] = 3;
    hello[11] = 1;
    hello[12..16].copy_from_slice(b"NULL");
    hello.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB");
    hello.extend_from_slice(b"\x00\x01\x01");
    stream.write_all(&hello).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_holds_up_nobody_and_its_losses_are_counted() {
    const BATCHES: u64 = 400;
    let counters = KvEventCounters::default();
    let small = KvEventsConfig {
        buffer_batches: 16,
        ..config()
    };
    let publisher = KvPublisher::start(&small, counters.clone()).unwrap();
    let stuck = raw_subscriber(port(&publisher.endpoint()));
    let mut socket = subscribe(&publisher.endpoint(), "").await;
    let first = first_number(&publisher, &mut socket).await;
    let large = KvEvent::BlockStored {
        hashes: vec![[7; 32]; 1000],
        parent: None,
        token_ids: vec![100_000; 64_000],
        block_size: 64,
    };
    // 128 MB in all: more than the system's buffers of one connection.
    for number in first + 1..=first + BATCHES {
        publisher.publish(vec![large.clone()]);
        assert_eq!(receive(&mut socket).await.1, number);
    }
    assert_eq!(counters.published.get(), first + BATCHES + 1);
    drop(stuck);
    reaches(&counters.dropped, 1).await;
}

#[tokio::test]
async fn a_publisher_connects_to_a_subscriber_that_listens_and_again_after_it_was_gone() {
    let mut socket = SubSocket::new();
    let endpoint = socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    socket.subscribe("").await.unwrap();
    let publisher = start(&KvEventsConfig {
        endpoint: endpoint.clone(),
        ..config()
    });
    let first = first_number(&publisher, &mut socket).await;
    drop(socket);

    let mut socket = loop {
        let mut socket = SubSocket::new();
        if socket.bind(&endpoint).await.is_ok() {
            socket.subscribe("").await.unwrap();
            break socket;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(first_number(&publisher, &mut socket).await > first);
}

#[tokio::test]
#[cfg(unix)]
async fn a_unix_socket_is_listened_on_and_replaced_if_nobody_does() {
    let folder = std::env::temp_dir().join(format!("glim-kv-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("events.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let ipc = KvEventsConfig {
        endpoint: format!("ipc://{}", path.display()),
        ..config()
    };
    let publisher = start(&ipc);
    let again = KvPublisher::start(&ipc, KvEventCounters::default());
    assert!(
        matches!(again, Err(KvEventsError::Listen { .. })),
        "{again:?}"
    );

    let mut socket = subscribe(&publisher.endpoint(), "").await;
    first_number(&publisher, &mut socket).await;
    drop(publisher);
    assert!(!path.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The connection is closed, whatever came before.
fn is_closed(mut stream: TcpStream) -> bool {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => continue,
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[tokio::test]
async fn bad_peers_are_closed_and_others_are_served() {
    let publisher = start(&config());
    let port = port(&publisher.endpoint());
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nand so on until there are sixty-four bytes".as_slice(),
        // A frame of 2^62 bytes, one with unknown flags, one of nine frames.
        b"\x02\x40\x00\x00\x00\x00\x00\x00\x00",
        b"\xF8\x00",
        b"\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00\x00\x00",
        b"\x04\x0a\x05ERROR\x03bad",
    ] {
        let mut stream = match bytes[0] {
            b'G' => TcpStream::connect(("127.0.0.1", port)).unwrap(),
            _ => raw_subscriber(port),
        };
        stream.write_all(bytes).unwrap();
        assert!(
            tokio::task::spawn_blocking(|| is_closed(stream))
                .await
                .unwrap(),
            "{bytes:?}"
        );
    }
    let mut socket = subscribe(&publisher.endpoint(), "").await;
    first_number(&publisher, &mut socket).await;
}

#[tokio::test]
async fn a_ping_is_answered_with_its_context() {
    let publisher = start(&config());
    let mut stream = raw_subscriber(port(&publisher.endpoint()));
    stream.write_all(b"\x04\x0a\x04PING\x00\x64abc").unwrap();
    let pong = tokio::task::spawn_blocking(move || {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(b"\x04\x08\x04PONGabc") {
            stream.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
    });
    pong.await.unwrap();
    drop(publisher);
}

#[test]
fn what_cannot_be_published_is_told() {
    #[track_caller]
    fn check(config: KvEventsConfig, expected: &str) {
        let error = KvPublisher::start(&config, KvEventCounters::default()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let topic = "kv@10.0.0.1:8000@glm@5".to_owned();
    check(KvEventsConfig { topic, ..config() }, "has 3 '@'");
    let endpoint = "udp://*:1".to_owned();
    check(
        KvEventsConfig {
            endpoint,
            ..config()
        },
        "is no address",
    );
    let taken = start(&config());
    let endpoint = taken.endpoint();
    check(
        KvEventsConfig {
            endpoint,
            ..config()
        },
        "cannot be listened on",
    );
}
