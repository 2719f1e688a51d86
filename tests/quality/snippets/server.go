package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Limit of open requests.
const Limit = 1 << 4

var ErrFull = errors.New("the server is full")

type Handler interface {
	Handle(ctx context.Context, path string) (int, error)
}

type Server[T any] struct {
	mu      sync.Mutex
	open    map[string]T
	handler func(T) error
}

func New[T any](handler func(T) error) *Server[T] {
	return &Server[T]{open: make(map[string]T), handler: handler}
}

func (s *Server[T]) Add(name string, value T) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= Limit {
		return fmt.Errorf("add %q: %w", name, ErrFull)
	}
	s.open[name] = value
	return nil
}

/* Names are sorted by
   nobody. */
func (s *Server[T]) Names(prefix string) []string {
	var names []string
	for name := range s.open {
		if strings.HasPrefix(name, prefix) || prefix == "" {
			names = append(names, name)
		}
	}
	return names
}

func kind(value any) string {
	switch v := value.(type) {
	case nil:
		return "nothing"
	case int, int64:
		return fmt.Sprint("number ", v)
	case []byte:
		return string(v[1:len(v)])
	default:
		return `raw "text"`
	}
}

func main() {
	server := New(func(n int) error { return nil })
	results := make(chan error, 2)
	for i := 0; i < 3; i++ {
		go func(i int) {
			results <- server.Add(fmt.Sprintf("job-%d", i), i*'a')
		}(i)
	}
	select {
	case err := <-results:
		if err != nil {
			fmt.Println(kind(3), err)
		}
	}
	fmt.Println(server.Names("job"), [3]int{1, 2, 3}, -1^0x0F)
}
