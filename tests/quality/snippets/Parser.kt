package parsing

import java.io.File

sealed class Token {
    data class Number(val value: Double) : Token()
    data class Name(val text: String, val line: Int = 0) : Token()
    object End : Token()
}

interface Source<out T> {
    val size: Int
    operator fun get(index: Int): T?
}

/* Tokens are read
   one by one. */
class Lexer(private val text: String) : Source<Char> {
    private var at = 0
    override val size: Int
        get() = text.length

    override fun get(index: Int): Char? = text.getOrNull(index)

    fun next(): Token {
        while (at < size && text[at].isWhitespace()) {
            at++
        }
        if (at >= size) return Token.End
        val start = at
        return when {
            text[at].isDigit() -> {
                while (at < size && (text[at].isDigit() || text[at] == '.')) at++
                Token.Number(text.substring(start, at).toDouble())
            }
            text[at] in 'a'..'z' -> Token.Name(text.substring(start, ++at))
            else -> throw IllegalStateException("unexpected ${text[at]} at $at")
        }
    }
}

fun <T : Any> List<T?>.clean(limit: Int = 10): List<T> = this.filterNotNull().take(limit)

fun main(args: Array<String>) {
    val lexer = Lexer(args.firstOrNull() ?: "1 a 2.5")
    val found = mutableListOf<Token>()
    do {
        val token = lexer.next()
        found += token
    } while (token !is Token.End)
    for ((i, token) in found.withIndex()) {
        val label = (token as? Token.Name)?.text?.uppercase() ?: "other"
        println("$i: $label")
    }
    try {
        println(File("none").readText().lines().map { it.trim() }.filter { line -> line.isNotEmpty() })
    } catch (e: Exception) {
        println("""no "file": ${e.message}""")
    }
    val total = listOf(1, null, 3).clean().sumOf { it * 2 }
    println(if (total > 4) "big" else "small")
}
