package trees

import scala.collection.mutable

sealed trait Tree[+A] {
  def size: Int = this match {
    case Leaf => 0
    case Node(left, _, right) => left.size + 1 + right.size
  }
}

case object Leaf extends Tree[Nothing]
final case class Node[A](left: Tree[A], value: A, right: Tree[A]) extends Tree[A]

/* Trees are built
   in order. */
object Tree {
  def empty[A]: Tree[A] = Leaf

  def insert[A](tree: Tree[A], value: A)(implicit order: Ordering[A]): Tree[A] = tree match {
    case Leaf => Node(Leaf, value, Leaf)
    case Node(l, v, r) if order.lt(value, v) => Node(insert(l, value), v, r)
    case Node(l, v, r) => Node(l, v, insert(r, value))
  }

  def fold[A, B](tree: Tree[A], zero: B)(f: (B, A) => B): B = {
    val open = mutable.Stack[Tree[A]](tree)
    var result = zero
    while (open.nonEmpty) {
      open.pop() match {
        case Leaf => ()
        case Node(l, v, r) =>
          result = f(result, v)
          open.push(r, l)
      }
    }
    result
  }
}

class Counter(private var count: Int = 0) {
  def +=(n: Int): this.type = { count += n; this }
  override def toString: String = s"Counter(${count * 2}, $count)"
}

object Main extends App {
  val numbers = List(5, 3, 8, 1)
  val tree = numbers.foldLeft(Tree.empty[Int])((t, n) => Tree.insert(t, n))
  val evens = for { n <- numbers if n % 2 == 0; m = n * n } yield m
  println(s"size ${tree.size}, sum ${Tree.fold(tree, 0)(_ + _)}, evens ${evens.mkString(", ")}")
  try {
    val map = Map("a" -> 1, "b" -> 2)
    println(map("c"))
  } catch {
    case e: NoSuchElementException => println("""no "c": """ + e.getMessage)
  }
  if (tree.size > 3) println('x') else println(new Counter(1) += 2)
}
