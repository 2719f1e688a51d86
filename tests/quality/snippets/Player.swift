import Foundation

protocol Playable: AnyObject {
    var title: String { get }
    func play(from start: Double) throws -> Bool
}

enum PlayerError: Error, Equatable {
    case missing(name: String)
    case busy
}

struct Song: Codable, Hashable {
    let title: String
    var seconds: Double = 0
    var isLong: Bool { seconds > 300 }
}

/* A player plays
   one song at a time. */
final class Player: Playable {
    private(set) var queue: [Song] = []
    var title: String { queue.first?.title ?? "nothing" }
    var onEnd: ((Song) -> Void)?

    init(queue: [Song] = []) {
        self.queue = queue
    }

    func play(from start: Double = 0) throws -> Bool {
        guard let song = queue.first, start >= 0 else {
            throw PlayerError.missing(name: title)
        }
        for second in stride(from: start, to: song.seconds, by: 1) where second < 3 {
            print("\(song.title): \(second)")
        }
        onEnd?(song)
        return !queue.isEmpty
    }

    func longest<T: Collection>(_ songs: T) -> Song? where T.Element == Song {
        return songs.max { $0.seconds < $1.seconds }
    }
}

extension Song {
    static func + (left: Song, right: Song) -> Song {
        Song(title: left.title + right.title, seconds: left.seconds + right.seconds)
    }
}

let player = Player(queue: [Song(title: "One", seconds: 2.5), Song(title: "Two")])
do {
    if try player.play(from: 1) {
        let names = player.queue.map(\.title).filter { $0.count > 2 }
        print(names.joined(separator: ", "))
    }
} catch let error as PlayerError {
    switch error {
    case .missing(let name): print("no \(name)")
    case .busy: break
    }
} catch {
    print(error.localizedDescription)
}
let table: [String: Int] = ["a": 1, "b": 0x1F]
var total = table.values.reduce(0, +)
repeat { total -= 1 } while total > 10
